"""
Who is let into a classic group by JoinGroup.

A newcomer may have to come back with the id that it is given first (KIP-394); a static member takes over the place of
the process that had its instance id before, without a rebalance if it wants the same (KIP-345, KIP-814).
"""

from dataclasses import replace
from functools import partial

from log_broker.core.groups.classic_group import NEW_MEMBER_TIMEOUT_MS, ClassicGroup, GroupState, refused
from log_broker.core.groups.classic_rebalances import Rebalances
from log_broker.core.groups.protocol import Effect, Join, JoinAnswer, Member, Reply, choose_protocol, to_retry
from log_broker.core.groups.writes import PendingWrites
from log_broker.errors import ErrorCode


class Joins:
    """Lets members in, at most so many."""

    def __init__(self, group: ClassicGroup, rebalances: Rebalances, writes: PendingWrites, members_max: int) -> None:
        self._group = group
        self._rebalances = rebalances
        self._writes = writes
        self._members_max = members_max

    def join(self, join: Join, now_ms: int) -> list[Effect]:
        """Take in a Join; it is answered at once only when it is refused or changes nothing."""
        group, roster = self._group, self._group.roster
        effects: list[Effect] = []
        error = self._check(join)
        if error is not ErrorCode.NONE:
            effects.append(Reply(join.token, JoinAnswer(error=error, member_id=join.member_id)))
            member = group.members.get(join.member_id)
            if error is ErrorCode.GROUP_MAX_SIZE_REACHED and member is not None:
                effects += group.take_out(member)
                self._rebalances.members_changed(now_ms, effects)
        elif not join.member_id:
            self._join_newcomer(join, now_ms, effects)
        elif join.member_id in roster.invited:
            roster.uninvite(join.member_id)
            self._add(join, join.member_id, now_ms, effects)
        else:
            self._rejoin(join, group.members[join.member_id], now_ms, effects)
        return effects

    # Checks.

    def _check(self, join: Join) -> ErrorCode:
        group = self._group
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if join.member_id and join.member_id not in group.roster.invited:
            error = group.check_member(join.member_id, join.instance_id)
            if error is not ErrorCode.NONE:
                return error
        if not self._has_seat(join):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocol_type or not join.protocols or not self._is_supported(join):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_seat(self, join: Join) -> bool:
        # In a rebalance only those have a seat that have come back: the others may be gone.
        group, roster = self._group, self._group.roster
        preparing = group.state is GroupState.PREPARING
        member = group.members.get(join.member_id)
        if member is not None and (not preparing or member.join_token is not None):
            return True
        returns = join.instance_id is not None and join.instance_id in roster.statics
        return returns or (roster.joined if preparing else len(group.members)) < self._members_max

    def _is_supported(self, join: Join) -> bool:
        group = self._group
        if group.state is GroupState.EMPTY or len(group.members) == (join.member_id in group.members):
            return True
        return join.protocol_type == group.protocol_type and any(
            group.roster.all_others_know(name, join.member_id) for name, _ in join.protocols
        )

    # Newcomers.

    def _join_newcomer(self, join: Join, now_ms: int, effects: list[Effect]) -> None:
        roster = self._group.roster
        if join.instance_id is not None and join.instance_id in roster.statics:
            self._replace_static(join, now_ms, effects)
        elif join.instance_id is None and join.id_round_trip:
            roster.invite(join.fresh_id, now_ms + join.session_timeout_ms)
            effects.append(Reply(join.token, JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.fresh_id)))
        else:
            self._add(join, join.fresh_id, now_ms, effects)

    def _add(self, join: Join, member_id: str, now_ms: int, effects: list[Effect]) -> None:
        group = self._group
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
        if group.state is GroupState.EMPTY:
            group.protocol_type = join.protocol_type
        group.roster.put(member)
        group.roster.wait_with_join(member, join.token)
        if group.leader is None:
            group.leader = member_id
        self._rebalances.member_added(now_ms, effects)

    # Members that come back.

    def _rejoin(self, join: Join, member: Member, now_ms: int, effects: list[Effect]) -> None:
        group = self._group
        unchanged = member.protocols == join.protocols
        leads = member.member_id == group.leader
        # A member that repeats a request whose answer was lost gets the answer again. A stable group's leader asks
        # for a rebalance by joining, for instance because a topic has got more partitions.
        if unchanged and (group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and not leads)):
            group.hear(member, now_ms)
            effects.append(Reply(join.token, group.join_answer(member)))
            return
        self._update(member, join, now_ms)
        if member.join_token is not None:
            stale = JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member.member_id)
            effects.append(Reply(member.join_token, stale))
        group.roster.wait_with_join(member, join.token)
        self._rebalances.members_changed(now_ms, effects)

    def _update(self, member: Member, join: Join, now_ms: int) -> None:
        self._group.roster.change_protocols(member, join.protocols)
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id = join.client_id
        member.client_host = join.client_host
        self._group.hear(member, now_ms)

    def _replace_static(self, join: Join, now_ms: int, effects: list[Effect]) -> None:
        """A static member came back as another process: it takes its place and assignment over (KIP-345)."""
        assert join.instance_id is not None, "only a static member is replaced"
        group, roster = self._group, self._group.roster
        old = group.members[roster.statics[join.instance_id]]
        effects += refused(old, ErrorCode.FENCED_INSTANCE_ID)
        roster.take_out(old)
        member = replace(old, member_id=join.fresh_id, join_token=None, sync_token=None)
        was_leader = group.leader == old.member_id
        said = old.metadata(group.protocol or "")
        roster.put(member)
        if was_leader:
            group.leader = member.member_id
        self._update(member, join, now_ms)
        if group.state is GroupState.STABLE:
            same = member.metadata(group.protocol or "") == said
            if same and choose_protocol(list(group.members.values())) == group.protocol:
                effects.append(self._keep_static(join, member, old.member_id if was_leader else None))
                return
        roster.wait_with_join(member, join.token)
        self._rebalances.members_changed(now_ms, effects)

    def _keep_static(self, join: Join, member: Member, led_as: str | None) -> Effect:
        """Answer a returned static member without a rebalance, once its new id is durable."""
        answer = self._group.join_answer(member)
        if led_as is not None and join.skips_assignment:
            answer = replace(answer, skip_assignment=True)
        elif led_as is not None:
            # An older client that found itself the leader would compute an assignment that nobody has asked for.
            answer = replace(answer, leader=led_as, members=())
        record = self._group.record(self._group.empty_since_ms)
        return self._writes.persist((record,), partial(_joined_again, join, answer))


def _joined_again(join: Join, answer: JoinAnswer, error: ErrorCode, _: int) -> list[Effect]:
    if error is not ErrorCode.NONE:
        answer = JoinAnswer(error=to_retry(error), member_id=answer.member_id)
    return [Reply(join.token, answer)]
