"""
The members of a consumer group and its generations, by the classic protocol.

    EMPTY ──Join──▶ PREPARING ──all joined, or time is up──▶ COMPLETING ──leader's Sync, persisted──▶ STABLE
      ▲                ▲   │ nobody left                         │ a member joins, leaves or is lost   │
      │                └───┼─────────────────────────────────────┴─────────────────────────────────────┘
      └────────────────────┘                                       EMPTY ──Delete──▶ DEAD

Members, and with them generations, live in memory and are persisted when a rebalance ends, so a coordinator that
restarts goes on with the last finished one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL, subscribed_topics
from log_broker.core.groups.protocol import (
    Effect,
    GroupRecord,
    Heartbeat,
    Join,
    JoinAnswer,
    JoinMember,
    Leave,
    LeaveAnswer,
    Member,
    Persist,
    Reply,
    Sync,
    SyncAnswer,
    choose_protocol,
    to_retry,
)
from log_broker.core.groups.records import StoredGroup, StoredMember, encode_group, encode_group_key
from log_broker.core.groups.roster import Roster
from log_broker.errors import ErrorCode

# A newcomer is not asked for heartbeats before its first generation; without an end a vanished one would stay for ever.
NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000

Outcome = Callable[[ErrorCode, int], list[Effect]]


class GroupState(Enum):
    """Under the names that DescribeGroups reports."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupMembers:
    """
    Members and generations of one group; `Group` adds its offsets.

    Always: a member waits with a Join only in PREPARING and with a Sync only in COMPLETING; `leader` is a member or
    None; every value of `statics` is a member; the roster's timers have those who are invited as well.
    """

    def __init__(self, group_id: str, *, initial_delay_ms: int = 0, members_max: int = 2**31 - 1) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self._roster = Roster()
        self.statics: dict[str, str] = {}  # instance id -> member id
        self.empty_since_ms = 0
        self._initial_delay_ms = initial_delay_ms
        self._members_max = members_max
        self._invited: dict[str, int] = {}  # ids given out and not yet come back with -> until when they may
        self._join_deadline_ms = 0
        self._join_deadline_ms_max: int | None = None  # while the first round of a group waits for more members
        self._sync_deadline_ms = 0
        self._outcomes: dict[int, Outcome] = {}
        self._persists = 0
        self._is_stored = False  # whether the log may hold a record of the group itself

    @property
    def members(self) -> dict[str, Member]:
        return self._roster.members

    def adopt(self, members: Sequence[Member], generation: int) -> None:
        """Begin as a stable group of these members, which spoke the classic protocol in a group of the new one."""
        self.generation = generation
        self.protocol_type = CONSUMER_PROTOCOL
        self.protocol = choose_protocol(list(members))
        self._roster.replace_all(members)
        self.statics = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
        self.leader = members[0].member_id
        self.state = GroupState.STABLE

    def end(self) -> None:
        """Take in, at load, that the log ends the group here; what comes later begins it again."""
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = self.protocol = self.leader = None
        self._roster.replace_all(())
        self.statics = {}
        self._is_stored = False

    def restore(self, stored: StoredGroup, now_ms: int) -> None:
        """Take over what the log says of a group; its members have a whole session to be heard of."""
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol = stored.protocol
        self.leader = stored.leader
        self._roster.replace_all(
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
        self.statics = {
            member.instance_id: member.member_id for member in stored.members if member.instance_id is not None
        }
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        self.empty_since_ms = stored.timestamp_ms
        self._is_stored = True

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next, at the latest."""
        deadlines = [self._roster.timers.earliest_ms()]
        if self.state is GroupState.PREPARING:
            deadlines.append(self._join_deadline_ms)
        # Once all have synced, only the assignment's being stored is waited for, however long that takes.
        if self.state is GroupState.COMPLETING and self._roster.synced < len(self.members):
            deadlines.append(self._sync_deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what has become due by time alone."""
        effects: list[Effect] = []
        lost: dict[str, Member] = {}
        for name in self._roster.timers.due(now_ms):
            if self._invited.pop(name, None) is None:
                lost[name] = self.members[name]
            else:
                self._roster.timers.drop(name)
        if self.state is GroupState.COMPLETING and self._sync_deadline_ms <= now_ms:
            lost |= {name: member for name, member in self.members.items() if member.sync_token is None}
        for member in lost.values():
            self._drop(member, effects)
        if lost:
            self._disturb(now_ms, effects)
        if self.state is GroupState.PREPARING:
            if self._join_deadline_ms <= now_ms:
                self._join_time_is_up(now_ms, effects)
            else:
                self._finish_joining_if_complete(now_ms, effects)
        return effects

    # Joining.

    def _join(self, join: Join, now_ms: int) -> Sequence[Effect]:
        effects: list[Effect] = []
        error = self._check_join(join)
        if error is not ErrorCode.NONE:
            effects.append(Reply(join.token, JoinAnswer(error=error, member_id=join.member_id)))
            member = self.members.get(join.member_id)
            if error is ErrorCode.GROUP_MAX_SIZE_REACHED and member is not None:
                self._drop(member, effects)
                self._disturb(now_ms, effects)
            return effects
        if not join.member_id:
            self._join_newcomer(join, now_ms, effects)
        elif join.member_id in self._invited:
            self._uninvite(join.member_id)
            self._add(join, join.member_id, now_ms, effects)
        else:
            self._rejoin(join, self.members[join.member_id], now_ms, effects)
        return effects

    def _check_join(self, join: Join) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if join.member_id and join.member_id not in self._invited:
            error = self._check_member(join.member_id, join.instance_id)
            if error is not ErrorCode.NONE:
                return error
            if not self._has_seat(join):
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        elif not self._has_seat(join):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocol_type or not join.protocols or not self._supports(join):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_seat(self, join: Join) -> bool:
        # In a rebalance only those have a seat that have come back: the others may be gone.
        preparing = self.state is GroupState.PREPARING
        member = self.members.get(join.member_id)
        if member is not None and (not preparing or member.join_token is not None):
            return True
        returns = join.instance_id is not None and join.instance_id in self.statics
        return returns or (self._roster.joined if preparing else len(self.members)) < self._members_max

    def _supports(self, join: Join) -> bool:
        if self.state is GroupState.EMPTY or len(self.members) == (join.member_id in self.members):
            return True
        return join.protocol_type == self.protocol_type and any(
            self._roster.all_others_know(name, join.member_id) for name, _ in join.protocols
        )

    def _join_newcomer(self, join: Join, now_ms: int, effects: list[Effect]) -> None:
        if join.instance_id is not None and join.instance_id in self.statics:
            self._replace_static(join, now_ms, effects)
        elif join.instance_id is None and join.id_round_trip:
            self._invited[join.fresh_id] = now_ms + join.session_timeout_ms
            self._roster.timers.set(join.fresh_id, now_ms + join.session_timeout_ms)
            effects.append(Reply(join.token, JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.fresh_id)))
        else:
            self._add(join, join.fresh_id, now_ms, effects)

    def _add(self, join: Join, member_id: str, now_ms: int, effects: list[Effect]) -> None:
        member = Member(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            is_new=True,
            deadline_ms=now_ms + NEW_MEMBER_TIMEOUT_MS,
        )
        if self.state is GroupState.EMPTY:
            self.protocol_type = join.protocol_type
        self._roster.put(member)
        self._roster.wait_with_join(member, join.token)
        if join.instance_id is not None:
            self.statics[join.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        if self._join_deadline_ms_max is not None and self.state is GroupState.PREPARING:
            self._join_deadline_ms = min(now_ms + self._initial_delay_ms, self._join_deadline_ms_max)
        self._disturb(now_ms, effects)

    def _rejoin(self, join: Join, member: Member, now_ms: int, effects: list[Effect]) -> None:
        unchanged = member.protocols == join.protocols
        leads = member.member_id == self.leader
        # A member that repeats a request whose answer was lost gets the answer again. A stable group's leader asks
        # for a rebalance by joining, for instance because a topic has got more partitions.
        if unchanged and (self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not leads)):
            self._hear(member, now_ms)
            effects.append(Reply(join.token, self._join_answer(member)))
            return
        self._update(member, join, now_ms)
        if member.join_token is not None:
            stale = JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member.member_id)
            effects.append(Reply(member.join_token, stale))
        self._roster.wait_with_join(member, join.token)
        self._disturb(now_ms, effects)

    def _update(self, member: Member, join: Join, now_ms: int) -> None:
        self._roster.change_protocols(member, join.protocols)
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id = join.client_id
        member.client_host = join.client_host
        self._hear(member, now_ms)

    def _replace_static(self, join: Join, now_ms: int, effects: list[Effect]) -> None:
        """A static member came back as another process: it takes its place and assignment over (KIP-345)."""
        assert join.instance_id is not None, "only a static member is replaced"
        old = self.members[self.statics[join.instance_id]]
        self._answer_waiting(old, ErrorCode.FENCED_INSTANCE_ID, effects)
        self._roster.take_out(old)
        member = replace(old, member_id=join.fresh_id, join_token=None, sync_token=None)
        was_leader = self.leader == old.member_id
        said = old.metadata(self.protocol or "")
        self._roster.put(member)
        self.statics[join.instance_id] = member.member_id
        if was_leader:
            self.leader = member.member_id
        self._update(member, join, now_ms)
        if self.state is GroupState.STABLE:
            same = member.metadata(self.protocol or "") == said
            if same and choose_protocol(list(self.members.values())) == self.protocol:
                self._keep_static(join, member, old.member_id if was_leader else None, effects)
                return
        self._roster.wait_with_join(member, join.token)
        self._disturb(now_ms, effects)

    def _keep_static(self, join: Join, member: Member, led_as: str | None, effects: list[Effect]) -> None:
        """Answer a returned static member without a rebalance, once its new id is durable."""
        answer = self._join_answer(member)
        if led_as is not None and join.skips_assignment:
            answer = replace(answer, skip_assignment=True)
        elif led_as is not None:
            # An older client that found itself the leader would compute an assignment that nobody has asked for.
            answer = replace(answer, leader=led_as, members=())

        def outcome(error: ErrorCode, _: int) -> list[Effect]:
            if error is not ErrorCode.NONE:
                return [Reply(join.token, JoinAnswer(error=to_retry(error), member_id=member.member_id))]
            return [Reply(join.token, answer)]

        effects.append(self._persist((self.stored_record(self.empty_since_ms),), outcome))

    def _disturb(self, now_ms: int, effects: list[Effect]) -> None:
        """Something about the members changed: begin a rebalance, or see whether the one under way is complete."""
        if self.state is GroupState.PREPARING:
            self._finish_joining_if_complete(now_ms, effects)
            return
        if self.state is GroupState.COMPLETING:
            for member in self.members.values():
                if member.sync_token is not None:
                    effects.append(Reply(member.sync_token, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)))
                    self._roster.wait_with_sync(member, None)
                    self._hear(member, now_ms)
        timeout_ms = max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
        first_round = self.state is GroupState.EMPTY and self._initial_delay_ms > 0
        self._join_deadline_ms_max = now_ms + timeout_ms if first_round else None
        self._join_deadline_ms = now_ms + (min(self._initial_delay_ms, timeout_ms) if first_round else timeout_ms)
        self.state = GroupState.PREPARING
        self._finish_joining_if_complete(now_ms, effects)

    def _finish_joining_if_complete(self, now_ms: int, effects: list[Effect]) -> None:
        if self._join_deadline_ms_max is not None and self.members:
            return
        if not self._invited and self._roster.joined == len(self.members):
            self._finish_joining(now_ms, effects)

    def _join_time_is_up(self, now_ms: int, effects: list[Effect]) -> None:
        # A static member may stay away until its session ends: that is what it is static for.
        for member in [m for m in self.members.values() if m.join_token is None and m.instance_id is None]:
            self._drop(member, effects)
        joined = [member for member in self.members.values() if member.join_token is not None]
        if self.members and not joined:
            timeout_ms = max(member.rebalance_timeout_ms for member in self.members.values())
            self._join_deadline_ms = now_ms + timeout_ms
            return
        if joined and (self.leader is None or self.members[self.leader].join_token is None):
            self.leader = joined[0].member_id
        self._finish_joining(now_ms, effects)

    def _finish_joining(self, now_ms: int, effects: list[Effect]) -> None:
        self._join_deadline_ms_max = None
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol = None
            self.leader = None
            self.empty_since_ms = now_ms
            effects.append(self._persist((self.stored_record(now_ms),), ignore_outcome))
            return
        self.protocol = choose_protocol(list(self.members.values()))
        self.state = GroupState.COMPLETING
        timeout_ms = max(member.rebalance_timeout_ms for member in self.members.values())
        self._sync_deadline_ms = now_ms + timeout_ms
        for member in self.members.values():
            member.is_new = False
            self._hear(member, now_ms)
            if member.join_token is not None:
                effects.append(Reply(member.join_token, self._join_answer(member)))
                self._roster.wait_with_join(member, None)

    def _join_answer(self, member: Member) -> JoinAnswer:
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

    # Syncing.

    def _sync(self, sync: Sync, now_ms: int) -> Sequence[Effect]:
        error = self._check_generation(sync.member_id, sync.instance_id, sync.generation)
        if error is ErrorCode.NONE and (
            sync.protocol_type not in {None, self.protocol_type} or sync.protocol not in {None, self.protocol}
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return [Reply(sync.token, SyncAnswer(error=error))]
        member = self.members[sync.member_id]
        self._hear(member, now_ms)
        if self.state is GroupState.STABLE:
            return [Reply(sync.token, self._sync_answer(member))]
        effects: list[Effect] = []
        if member.sync_token is not None:
            effects.append(Reply(member.sync_token, SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)))
        self._roster.wait_with_sync(member, sync.token)
        if member.member_id == self.leader:
            assignments = {member_id: sync.assignments.get(member_id, b"") for member_id in self.members}
            generation = self.generation

            def outcome(error: ErrorCode, at_ms: int) -> list[Effect]:
                return self._assigned(generation, assignments, error, at_ms)

            effects.append(self._persist((self.stored_record(now_ms, assignments),), outcome))
        return effects

    def _assigned(
        self, generation: int, assignments: Mapping[str, bytes], error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        """The leader's assignment has been stored, if nothing has come between."""
        effects: list[Effect] = []
        if self.state is not GroupState.COMPLETING or generation != self.generation:
            return effects
        if error is not ErrorCode.NONE:
            for member in self.members.values():
                if member.sync_token is not None:
                    effects.append(Reply(member.sync_token, SyncAnswer(error=to_retry(error))))
                    self._roster.wait_with_sync(member, None)
            self._disturb(now_ms, effects)
            return effects
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments[member.member_id]
            if member.sync_token is not None:
                effects.append(Reply(member.sync_token, self._sync_answer(member)))
                self._roster.wait_with_sync(member, None)
            self._hear(member, now_ms)
        return effects

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    # Staying and leaving.

    def _heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> Sequence[Effect]:
        error = self._check_generation(heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is ErrorCode.NONE:
            self._hear(self.members[heartbeat.member_id], now_ms)
            if self.state is GroupState.PREPARING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return (Reply(heartbeat.token, error),)

    def _leave(self, leave: Leave, now_ms: int) -> Sequence[Effect]:
        effects: list[Effect] = []
        answers = []
        anyone = False
        for member_id, instance_id in leave.members:
            error = ErrorCode.NONE
            if member_id in self._invited:
                self._uninvite(member_id)
                anyone = True
            else:
                if not member_id and instance_id is not None:
                    known_as = self.statics.get(instance_id, "")
                    error = self._check_member(known_as, instance_id)
                else:
                    known_as = member_id
                    error = self._check_member(member_id, instance_id)
                if error is ErrorCode.NONE:
                    self._drop(self.members[known_as], effects)
                    anyone = True
            answers.append(LeaveAnswer(member_id, instance_id, error))
        effects.append(Reply(leave.token, tuple(answers)))
        if anyone and self.state is not GroupState.EMPTY:
            self._disturb(now_ms, effects)
        return effects

    # What the above share.

    def _subscribed_topics(self) -> frozenset[str] | None:
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

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            known_as = self.statics.get(instance_id)
            if known_as is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known_as != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self._check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def _hear(self, member: Member, now_ms: int) -> None:
        timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._roster.hear(member, now_ms + timeout_ms)

    def _uninvite(self, member_id: str) -> None:
        del self._invited[member_id]
        self._roster.timers.drop(member_id)

    def _drop(self, member: Member, effects: list[Effect]) -> None:
        """Take a member out; the caller sees to the rebalance."""
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, effects)
        self._roster.take_out(member)
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _answer_waiting(self, member: Member, error: ErrorCode, effects: list[Effect]) -> None:
        if member.join_token is not None:
            effects.append(Reply(member.join_token, JoinAnswer(error=error, member_id=member.member_id)))
        if member.sync_token is not None:
            effects.append(Reply(member.sync_token, SyncAnswer(error=error)))

    def _persist(
        self,
        records: tuple[GroupRecord, ...],
        outcome: Outcome,
        *,
        producer: tuple[int, int] | None = None,
        is_step: bool = False,
    ) -> Persist:
        self._persists += 1
        self._outcomes[self._persists] = outcome
        return Persist(self._persists, records, producer, is_step)

    def stored_record(self, now_ms: int, assignments: Mapping[str, bytes] | None = None) -> GroupRecord:
        """Return the record that a coordinator restarts from; `assignments` are those that are yet to hold."""
        self._is_stored = True
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


def ignore_outcome(error: ErrorCode, now_ms: int) -> list[Effect]:
    """Nobody waits for these records."""
    return []
