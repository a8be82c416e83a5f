"""The classic protocol of groups: what their members ask, and what time alone does."""

from collections.abc import Sequence

from log_broker.core.groups.classic_group import ClassicGroup, GroupState
from log_broker.core.groups.classic_joins import Joins
from log_broker.core.groups.classic_rebalances import Rebalances
from log_broker.core.groups.protocol import (
    Effect,
    Heartbeat,
    Join,
    Leave,
    LeaveAnswer,
    Reply,
    Sync,
    SyncAnswer,
)
from log_broker.core.groups.writes import PendingWrites
from log_broker.errors import ErrorCode


class ClassicProtocol:
    """Decides about one classic group."""

    def __init__(self, group: ClassicGroup, writes: PendingWrites, *, initial_delay_ms: int, members_max: int) -> None:
        self._group = group
        self.rebalances = Rebalances(group, writes, initial_delay_ms)
        self._joins = Joins(group, self.rebalances, writes, members_max)

    def handle(self, event: Join | Sync | Heartbeat | Leave, now_ms: int) -> Sequence[Effect]:
        match event:
            case Join():
                return self._joins.join(event, now_ms)
            case Sync():
                return self._sync(event, now_ms)
            case Heartbeat():
                return self._heartbeat(event, now_ms)
            case Leave():
                return self._leave(event, now_ms)

    def _sync(self, sync: Sync, now_ms: int) -> Sequence[Effect]:
        group = self._group
        error = group.check_generation(sync.member_id, sync.instance_id, sync.generation)
        if error is ErrorCode.NONE and (
            sync.protocol_type not in {None, group.protocol_type} or sync.protocol not in {None, group.protocol}
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and group.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return [Reply(sync.token, SyncAnswer(error=error))]
        member = group.members[sync.member_id]
        group.hear(member, now_ms)
        if group.state is GroupState.STABLE:
            return [Reply(sync.token, group.sync_answer(member))]
        return self.rebalances.wait_for_assignment(member, sync, now_ms)

    def _heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> Sequence[Effect]:
        group = self._group
        error = group.check_generation(heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is ErrorCode.NONE:
            group.hear(group.members[heartbeat.member_id], now_ms)
            if group.state is GroupState.PREPARING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return (Reply(heartbeat.token, error),)

    def _leave(self, leave: Leave, now_ms: int) -> Sequence[Effect]:
        group, roster = self._group, self._group.roster
        effects: list[Effect] = []
        answers = []
        anyone = False
        for member_id, instance_id in leave.members:
            error = ErrorCode.NONE
            if member_id in roster.invited:
                roster.uninvite(member_id)
            else:
                known_as = member_id
                if not member_id and instance_id is not None:
                    known_as = roster.statics.get(instance_id, "")
                error = group.check_member(known_as, instance_id)
                if error is ErrorCode.NONE:
                    effects += group.take_out(group.members[known_as])
            anyone |= error is ErrorCode.NONE
            answers.append(LeaveAnswer(member_id, instance_id, error))
        effects.append(Reply(leave.token, tuple(answers)))
        if anyone and group.state not in {GroupState.EMPTY, GroupState.DEAD}:
            self.rebalances.members_changed(now_ms, effects)
        return effects
