"""
What the replicas of the metadata quorum say to each other.

Each class is one Kafka API, with the fields that decide something: Vote, BeginQuorumEpoch and EndQuorumEpoch (KIP-595,
pre-vote KIP-996), Fetch, FetchSnapshot (KIP-630). Every answer carries the epoch and leader that the answerer knows.

A request has an id that its answer repeats. The link need not keep order or deliver at all, and may deliver a request
twice; but an answer must reach only the process that asked, as it does on a TCP connection: ids begin again with one.
"""

from dataclasses import dataclass

from log_broker.core.raft.log import Entry, OffsetAndEpoch
from log_broker.core.raft.voters import ReplicaKey
from log_broker.errors import ErrorCode

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """`candidate`, whose log ends at `log_end`, asks `voter` for its vote; with `pre_vote`, whether it would get it."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    log_end: OffsetAndEpoch
    pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """`voter` repeats whom the request was for."""

    error: ErrorCode = ErrorCode.NONE
    epoch: int
    leader_id: int
    voter: ReplicaKey
    vote_granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """The leader tells a voter that it leads."""

    epoch: int
    leader_id: int
    voter: ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """The leader leads no more; `preferred_successors` are the voters, the one with the longest log first."""

    epoch: int
    leader_id: int
    preferred_successors: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumEpochResponse:
    """The answer to BeginQuorumEpoch and EndQuorumEpoch."""

    error: ErrorCode = ErrorCode.NONE
    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """
    `replica` asks for entries from `log_end` on; all before it is on its disk, so this acknowledges them.

    `high_watermark` is what it knows, so that a leader who knows of more answers at once (KIP-1166). A leader with
    nothing new keeps the answer back for `wait_ms`.
    """

    epoch: int
    replica: ReplicaKey
    log_end: OffsetAndEpoch
    high_watermark: int
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """
    Entries, or where the asker's log diverges from the leader's, or the snapshot it must have first.

    `diverging` is the end of the leader's largest epoch up to the asker's last.
    """

    error: ErrorCode = ErrorCode.NONE
    epoch: int
    leader_id: int
    entries: tuple[Entry, ...] = ()
    high_watermark: int = 0
    diverging: OffsetAndEpoch | None = None
    snapshot_id: OffsetAndEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """`replica` asks for the bytes of a snapshot from `position` on."""

    epoch: int
    replica: ReplicaKey
    snapshot_id: OffsetAndEpoch
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """A part of a snapshot of `size` bytes; `voters` is the encoded voter set that it carries."""

    error: ErrorCode = ErrorCode.NONE
    epoch: int
    leader_id: int
    snapshot_id: OffsetAndEpoch
    size: int = 0
    position: int = 0
    part: bytes = b""
    voters: bytes = b""


RaftRequest = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | FetchSnapshotRequest
RaftResponse = VoteResponse | QuorumEpochResponse | FetchResponse | FetchSnapshotResponse
