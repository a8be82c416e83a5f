"""
The rebalances of a classic group: one ends a generation and begins the next.

All members join, or the join deadline passes; the leader assigns; each Sync is answered once the assignment is durable.
A change of the members in between begins another rebalance.
"""

from collections.abc import Mapping
from functools import partial

from log_broker.core.groups.classic_group import ClassicGroup, GroupState
from log_broker.core.groups.protocol import Effect, Member, Reply, Sync, SyncAnswer, choose_protocol, to_retry
from log_broker.core.groups.writes import PendingWrites
from log_broker.errors import ErrorCode


class Rebalances:
    """Moves the group from state to state, for its members' sake or as time passes."""

    def __init__(self, group: ClassicGroup, writes: PendingWrites, initial_delay_ms: int) -> None:
        self._group = group
        self._writes = writes
        self._initial_delay_ms = initial_delay_ms
        self._join_deadline_ms = 0
        self._join_deadline_ms_max: int | None = None  # while the first round of a group waits for more members
        self._sync_deadline_ms = 0

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next, at the latest."""
        group = self._group
        session_end = group.roster.timers.earliest_ms()
        if group.state is GroupState.PREPARING:
            step_end = self._join_deadline_ms
        elif group.state is GroupState.COMPLETING and group.roster.synced < len(group.members):
            step_end = self._sync_deadline_ms
        else:  # once all have synced, only the assignment's being stored is waited for, however long that takes
            return session_end
        return step_end if session_end is None else min(session_end, step_end)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what has become due by time alone."""
        group, roster = self._group, self._group.roster
        effects: list[Effect] = []
        lost: dict[str, Member] = {}
        for name in roster.timers.due(now_ms):
            if name in roster.invited:
                roster.uninvite(name)
            else:
                lost[name] = group.members[name]
        if group.state is GroupState.COMPLETING and self._sync_deadline_ms <= now_ms:
            lost |= {name: member for name, member in group.members.items() if member.sync_token is None}
        for member in lost.values():
            effects += group.take_out(member)
        if lost:
            self.members_changed(now_ms, effects)
        if group.state is GroupState.PREPARING:
            if self._join_deadline_ms <= now_ms:
                self._join_time_is_up(now_ms, effects)
            else:
                self._finish_joining_if_complete(now_ms, effects)
        return effects

    # Joining.

    def members_changed(self, now_ms: int, effects: list[Effect]) -> None:
        """Begin a rebalance, or see whether the one under way is complete."""
        group = self._group
        if group.state is GroupState.PREPARING:
            self._finish_joining_if_complete(now_ms, effects)
            return
        if group.state is GroupState.COMPLETING:
            for member in group.members.values():
                if member.sync_token is not None:
                    effects += group.send_back(member)
                    group.hear(member, now_ms)
        timeout_ms = group.rebalance_timeout_ms()
        first_round = group.state is GroupState.EMPTY and self._initial_delay_ms > 0
        self._join_deadline_ms_max = now_ms + timeout_ms if first_round else None
        self._join_deadline_ms = now_ms + (min(self._initial_delay_ms, timeout_ms) if first_round else timeout_ms)
        group.move_to(GroupState.PREPARING)
        self._finish_joining_if_complete(now_ms, effects)

    def member_added(self, now_ms: int, effects: list[Effect]) -> None:
        """As `members_changed`; a first round waits once more for others that start at the same time."""
        if self._join_deadline_ms_max is not None and self._group.state is GroupState.PREPARING:
            self._join_deadline_ms = min(now_ms + self._initial_delay_ms, self._join_deadline_ms_max)
        self.members_changed(now_ms, effects)

    def _finish_joining_if_complete(self, now_ms: int, effects: list[Effect]) -> None:
        roster = self._group.roster
        if self._join_deadline_ms_max is not None and roster.members:
            return
        if not roster.invited and roster.joined == len(roster.members):
            self._finish_joining(now_ms, effects)

    def _join_time_is_up(self, now_ms: int, effects: list[Effect]) -> None:
        group = self._group
        # A static member may stay away until its session ends: that is what it is static for.
        for member in [m for m in group.members.values() if m.join_token is None and m.instance_id is None]:
            effects += group.take_out(member)
        joined = [member for member in group.members.values() if member.join_token is not None]
        if group.members and not joined:
            self._join_deadline_ms = now_ms + group.rebalance_timeout_ms()
            return
        if joined and (group.leader is None or group.members[group.leader].join_token is None):
            group.leader = joined[0].member_id
        self._finish_joining(now_ms, effects)

    def _finish_joining(self, now_ms: int, effects: list[Effect]) -> None:
        group = self._group
        self._join_deadline_ms_max = None
        group.generation += 1
        if not group.members:
            group.move_to(GroupState.EMPTY)
            group.protocol = None
            group.leader = None
            group.empty_since_ms = now_ms
            effects.append(self._writes.persist((group.record(now_ms),)))
            return
        group.protocol = choose_protocol(list(group.members.values()))
        group.move_to(GroupState.COMPLETING)
        self._sync_deadline_ms = now_ms + group.rebalance_timeout_ms()
        for member in group.members.values():
            member.is_new = False
            group.hear(member, now_ms)
            if member.join_token is not None:
                effects.append(Reply(member.join_token, group.join_answer(member)))
                group.roster.wait_with_join(member, None)

    # Syncing.

    def wait_for_assignment(self, member: Member, sync: Sync, now_ms: int) -> list[Effect]:
        """In COMPLETING: keep a member's Sync, and store the assignment if it is the leader's."""
        group = self._group
        effects: list[Effect] = []
        if member.sync_token is not None:
            effects.append(Reply(member.sync_token, SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)))
        group.roster.wait_with_sync(member, sync.token)
        if member.member_id == group.leader:
            assignments = {member_id: sync.assignments.get(member_id, b"") for member_id in group.members}
            record = group.record(now_ms, assignments)
            effects.append(self._writes.persist((record,), partial(self._assigned, group.generation, assignments)))
        return effects

    def _assigned(
        self, generation: int, assignments: Mapping[str, bytes], error: ErrorCode, now_ms: int
    ) -> list[Effect]:
        """The leader's assignment has been stored, if nothing has come between."""
        group = self._group
        effects: list[Effect] = []
        if group.state is not GroupState.COMPLETING or generation != group.generation:
            return effects
        if error is ErrorCode.NONE:
            group.move_to(GroupState.STABLE)
        for member in group.members.values():
            if error is ErrorCode.NONE:
                member.assignment = assignments[member.member_id]
                answer = group.sync_answer(member)
                group.hear(member, now_ms)
            else:
                answer = SyncAnswer(error=to_retry(error))
            if member.sync_token is not None:
                effects.append(Reply(member.sync_token, answer))
                group.roster.wait_with_sync(member, None)
        if error is not ErrorCode.NONE:
            self.members_changed(now_ms, effects)
        return effects
