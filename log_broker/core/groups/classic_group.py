"""
What is known of a group of the classic protocol: its state, its generation and its members.

Members, and with them generations, live in memory and are persisted when a rebalance ends, so a coordinator that
restarts goes on with the last finished one.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL, subscribed_topics
from log_broker.core.groups.protocol import (
    Effect,
    GroupRecord,
    JoinAnswer,
    JoinMember,
    Member,
    Reply,
    SyncAnswer,
    choose_protocol,
)
from log_broker.core.groups.records import StoredGroup, StoredMember, encode_group, encode_group_key
from log_broker.core.groups.roster import Roster
from log_broker.errors import ErrorCode

# A newcomer is not asked for heartbeats before its first generation; without an end a vanished one would stay for ever.
NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000


class GroupState(Enum):
    """Under the names that DescribeGroups reports."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


PREVIOUS_STATES: Mapping[GroupState, frozenset[GroupState]] = {
    # The last member has left; or the end of the group could not be stored.
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    # A member has joined, left or been lost.
    GroupState.PREPARING: frozenset({GroupState.EMPTY, GroupState.COMPLETING, GroupState.STABLE}),
    # All members have joined, or the time to do so is up.
    GroupState.COMPLETING: frozenset({GroupState.PREPARING}),
    # The leader's assignment is durable.
    GroupState.STABLE: frozenset({GroupState.COMPLETING}),
    GroupState.DEAD: frozenset(GroupState),
}
"""For each state those that it may follow. What is loaded or converted begins in its state."""


class ClassicGroup:
    """
    State, generation and members of one group.

    Always: a member waits with a Join only in PREPARING and with a Sync only in COMPLETING; `leader` is a member or
    None.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.roster = Roster()
        self.empty_since_ms = 0
        self.is_stored = False  # whether the log may hold a record of the group itself

    @property
    def members(self) -> dict[str, Member]:
        return self.roster.members

    def move_to(self, state: GroupState) -> None:
        assert self.state in PREVIOUS_STATES[state], f"{state} does not follow {self.state}"
        self.state = state

    # Beginnings.

    def adopt(self, members: Sequence[Member], generation: int) -> None:
        """Begin as a stable group of these members, which spoke the classic protocol in a group of the new one."""
        self._begin(members)
        self.generation = generation
        self.protocol_type = CONSUMER_PROTOCOL
        self.protocol = choose_protocol(list(members))
        self.leader = members[0].member_id

    def end(self) -> None:
        """The log ends the group here; what comes later begins it again."""
        self._begin(())
        self.generation = 0
        self.protocol_type = self.protocol = self.leader = None
        self.is_stored = False

    def restore(self, stored: StoredGroup, now_ms: int) -> None:
        """Take over what the log says of a group; its members have a whole session to be heard of."""
        self._begin(
            Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=((stored.protocol or "", member.subscription),),
                assignment=member.assignment,
                deadline_ms=now_ms + member.session_timeout_ms,
            )
            for member in stored.members
        )
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol = stored.protocol
        self.leader = stored.leader
        self.empty_since_ms = stored.timestamp_ms
        self.is_stored = True

    def _begin(self, members: Iterable[Member]) -> None:
        self.roster.replace_all(members)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    # Members.

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            known_as = self.roster.statics.get(instance_id)
            if known_as is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known_as != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def hear(self, member: Member, now_ms: int) -> None:
        """Restart a member's session."""
        timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self.roster.hear(member, now_ms + timeout_ms)

    def take_out(self, member: Member) -> list[Effect]:
        """Take a member out and answer what it waits for; the caller sees to the rebalance."""
        answers = refused(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.roster.take_out(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        return answers

    def send_back(self, member: Member) -> list[Effect]:
        """Answer what a member waits for: it is to join again."""
        answers = refused(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self.roster.wait_with_join(member, None)
        self.roster.wait_with_sync(member, None)
        return answers

    def rebalance_timeout_ms(self) -> int:
        """Return the longest that a member asks for; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members read, None when not all of them say so in a way that is known."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            read = subscribed_topics(member.metadata(self.protocol or ""))
            if read is None:
                return None
            topics |= read
        return topics

    # Answers and records.

    def join_answer(self, member: Member) -> JoinAnswer:
        protocol = self.protocol or ""
        others: tuple[JoinMember, ...] = ()
        if member.member_id == self.leader:
            others = tuple(
                JoinMember(other.member_id, other.instance_id, other.metadata(protocol))
                for other in self.members.values()
            )
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=others,
        )

    def sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    def record(self, now_ms: int, assignments: Mapping[str, bytes] | None = None) -> GroupRecord:
        """Return the record that a coordinator restarts from; `assignments` are those that are yet to hold."""
        self.is_stored = True
        stored = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            timestamp_ms=now_ms,
            members=tuple(
                StoredMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol or ""),
                    assignment=member.assignment if assignments is None else assignments[member.member_id],
                )
                for member in self.members.values()
            ),
        )
        return encode_group_key(self.group_id), encode_group(stored)

    def tombstone(self) -> GroupRecord:
        """Return the record that ends the group."""
        return encode_group_key(self.group_id), None

    def tombstones(self) -> tuple[GroupRecord, ...]:
        """Return the record that ends the group, none when the log cannot hold one of it."""
        return (self.tombstone(),) if self.is_stored else ()


def refused(member: Member, error: ErrorCode) -> list[Effect]:
    """Return the answers to what a member waits for, which say only `error`."""
    answers: list[Effect] = []
    if member.join_token is not None:
        answers.append(Reply(member.join_token, JoinAnswer(error=error, member_id=member.member_id)))
    if member.sync_token is not None:
        answers.append(Reply(member.sync_token, SyncAnswer(error=error)))
    return answers
