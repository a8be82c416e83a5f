"""The events, effects and answers of a consumer group (the classic protocol, KIP-62, KIP-345, KIP-394)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from log_broker.core.groups.consumer_events import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from log_broker.core.groups.records import CommittedOffset
from log_broker.errors import ErrorCode

NO_GENERATION = -1

# An assignor's name and what its member says to it.
Protocol = tuple[str, bytes]
TopicPartition = tuple[str, int]
GroupRecord = tuple[bytes, bytes | None]

# In every event: `token` comes back in the Reply that answers it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """
    A member asks into the next generation. `fresh_id` is the id it gets if it has none yet.

    With `id_round_trip` a newcomer is first told its id and must come back with it, so that a client that gives up
    waiting leaves no member behind. `skips_assignment` says that the client knows of that field of the answer.
    """

    token: Any
    member_id: str
    fresh_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    id_round_trip: bool = False
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member asks for its assignment; the leader brings everyone's."""

    token: Any
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member is alive."""

    token: Any
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Members leave: (member id, instance id); one with an empty member id is named by its instance."""

    token: Any
    members: tuple[tuple[str, str | None], ...]


class Commit(NamedTuple):
    """
    A member, or with NO_GENERATION and no id someone outside the protocol, commits offsets.

    With a `producer`, (id, epoch), they are part of its transaction and count once that is committed.
    `knows_epochs` says that its request can carry the epoch of a member of the new protocol.
    """

    token: Any
    member_id: str
    generation: int
    instance_id: str | None
    offsets: Mapping[TopicPartition, CommittedOffset]
    producer: tuple[int, int] | None = None
    knows_epochs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Someone outside the group takes committed offsets away."""

    token: Any
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """The whole group is to be forgotten."""

    token: Any


class Persisted(NamedTuple):
    """The records of Persist `number` are durable, or could not be made so."""

    number: int
    error: ErrorCode = ErrorCode.NONE


Asked = ConsumerHeartbeat | Join | Sync | Heartbeat | Leave | Commit | DeleteOffsets | Delete
Event = Asked | Persisted


class JoinMember(NamedTuple):
    """What a leader is told of each member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """`members` is filled for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The member's own assignment, as the leader wrote it."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeaveAnswer(NamedTuple):
    """One for each member that was named."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


Answer = (
    JoinAnswer
    | SyncAnswer
    | ErrorCode
    | tuple[LeaveAnswer, ...]
    | Mapping[TopicPartition, ErrorCode]
    | ConsumerHeartbeatAnswer
)


class Reply(NamedTuple):
    """Answer the event that brought `token`."""

    token: Any
    answer: Answer


class Persist(NamedTuple):
    """
    Append records to the group's partition, in the transaction of `producer` if there is one; report with Persisted.

    With a producer that is done before anything that stands behind these records in the log is reported. With
    `is_step` the next records build on these: what is in the log and has too few copies is waited for, not reported as
    failed, because it may yet be committed.
    """

    number: int
    records: tuple[GroupRecord, ...]
    producer: tuple[int, int] | None = None
    is_step: bool = False


Effect = Reply | Persist


@dataclass(slots=True, kw_only=True)
class Member:
    """
    One member of a group.

    `join_token` and `sync_token` are the requests of its that wait for an answer. Its session ends at `deadline_ms`
    unless it is heard of before; while a request of its waits, it need not be heard of.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join_token: Any = None
    sync_token: Any = None
    is_new: bool = False
    deadline_ms: int = 0

    def metadata(self, protocol: str) -> bytes:
        """What the member says to an assignor, empty if it does not know it."""
        return next((content for name, content in self.protocols if name == protocol), b"")

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None


def choose_protocol(members: list[Member]) -> str:
    """Return the assignor that all members know and most put first; ties go to the first member's order."""
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    assert common, "a member without a common protocol is not let in"
    votes: dict[str, int] = {}
    for member in members:
        vote = next(name for name, _ in member.protocols if name in common)
        votes[vote] = votes.get(vote, 0) + 1
    return max(votes, key=lambda name: votes[name])


def to_retry(error: ErrorCode) -> ErrorCode:
    """Say what a client is to make of a failed append: the coordinator's trouble is not its own."""
    match error:
        case ErrorCode.NONE | ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
            return error
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
