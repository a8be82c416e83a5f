"""
Members of a consumer group of the new protocol (KIP-848) that still speak the classic one.

To them the group looks classic: an epoch is a generation, and each step of their reconciliation is a rebalance that a
heartbeat calls for, a join takes and a sync ends. Nobody leads: the coordinator assigns.
"""

from dataclasses import replace
from typing import Any

from log_broker.core.groups.consumer_group_records import (
    ClassicMetadata,
    CurrentAssignment,
    MemberState,
    Subscription,
)
from log_broker.core.groups.consumer_group_state import ConsumerGroupState
from log_broker.core.groups.consumer_members import ConsumerMembers, Decision, Downgrade, Draft
from log_broker.core.groups.consumer_protocol import (
    CONSUMER_PROTOCOL,
    MalformedSubscriptionError,
    read_subscription,
    write_assignment,
)
from log_broker.core.groups.conversion import classic_members, from_places, to_places
from log_broker.core.groups.protocol import Heartbeat, Join, JoinAnswer, Leave, LeaveAnswer, Sync, SyncAnswer
from log_broker.errors import BrokerError, ErrorCode


class ClassicSide(ConsumerMembers):
    """The decisions about classic members; each raises BrokerError for an answer that is only an error."""

    def _decide_join(self, join: Join, now_ms: int) -> Decision:
        self._check_seat(join.member_id, join.instance_id)
        if join.protocol_type != CONSUMER_PROTOCOL or not self._has_common_protocol(join):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not join.member_id and join.instance_id is None and join.id_round_trip:
            answer = JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.fresh_id)
            return Decision(draft=Draft(self.state), answer=answer)
        try:
            said = read_subscription(join.protocols[0][1])
        except MalformedSubscriptionError as error:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
        draft = Draft(self.state)
        member_id, replaced = self._take_seat(join, draft)
        known = draft.state.subscriptions.get(member_id, Subscription())
        subscription = replace(
            known,
            instance_id=join.instance_id or known.instance_id,
            rack_id=said.rack_id or known.rack_id,
            client_id=join.client_id,
            client_host=join.client_host,
            topics=said.topics,
            regex=None,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            assignor=None,
            classic=ClassicMetadata(session_timeout_ms=join.session_timeout_ms, protocols=join.protocols),
        )
        self._settle(draft, member_id, subscription, to_places(said.owned, self._cluster), now_ms)
        current = draft.state.owned_by(member_id)
        answer = JoinAnswer(
            member_id=member_id,
            generation=current.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol=join.protocols[0][0],
        )
        downgrade = None
        if replaced is not None and self._may_downgrade(draft.state):
            left = classic_members(draft.state, self._cluster, now_ms)
            settled = draft.state.state is ConsumerGroupState.STABLE
            downgrade = Downgrade(members=left, generation=draft.state.epoch, rebalances=not settled)

        def after(now_ms: int) -> None:
            if replaced is not None:
                self._forget_timers(replaced)
            self._joins.drop(member_id)
            self._revocations.drop(member_id)
            self._syncs.set(member_id, now_ms + join.rebalance_timeout_ms)
            self._hear(member_id, now_ms)

        return Decision(draft=draft, answer=answer, after=after, downgrade=downgrade)

    def _take_seat(self, join: Join, draft: Draft) -> tuple[str, str | None]:
        """Return the id of the member and that of the one whose place it takes."""
        member_id = join.member_id or join.fresh_id
        if join.instance_id is None:
            return member_id, None
        if join.member_id:
            return self._static_member(join.member_id, join.instance_id), None
        old_id = self.state.statics.get(join.instance_id)
        if old_id is not None:
            self._replace(draft, old_id, member_id)
        return member_id, old_id

    def _has_common_protocol(self, join: Join) -> bool:
        others = [
            {name for name, _ in subscription.classic.protocols}
            for member_id, subscription in self.state.classic_members()
            if member_id != join.member_id and subscription.classic is not None
        ]
        offered = {name for name, _ in join.protocols}
        return bool(offered.intersection(*others))

    def _decide_sync(self, sync: Sync) -> Decision:
        member_id, classic, current = self._classic_member(sync.member_id, sync.instance_id)
        self._check_generation_of(current, sync.generation)
        protocol, metadata = classic.protocols[0]
        if sync.protocol_type not in {None, CONSUMER_PROTOCOL} or sync.protocol not in {None, protocol}:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        owned = from_places(current.assigned, self._cluster)
        answer = SyncAnswer(
            protocol_type=CONSUMER_PROTOCOL,
            protocol=protocol,
            assignment=write_assignment(owned, read_subscription(metadata).version),
        )

        def after(now_ms: int) -> None:
            self._syncs.drop(member_id)
            self._hear(member_id, now_ms)

        return Decision(draft=Draft(self.state), answer=answer, after=after)

    def _decide_classic_heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> Decision:
        member_id, _, current = self._classic_member(heartbeat.member_id, heartbeat.instance_id)
        self._check_generation_of(current, heartbeat.generation)
        self._hear(member_id, now_ms)
        error = ErrorCode.NONE
        if (
            current.epoch < self.state.epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or (current.state is MemberState.UNRELEASED_PARTITIONS and not self.state.waits_for_others(member_id))
        ):
            error = ErrorCode.REBALANCE_IN_PROGRESS
            timeout_ms = self.state.subscriptions[member_id].rebalance_timeout_ms
            if member_id not in self._joins:
                self._joins.set(member_id, now_ms + timeout_ms)
        return Decision(draft=Draft(self.state), answer=error)

    def _decide_classic_leave(self, leave: Leave, now_ms: int) -> Decision:
        gone: list[str] = []
        answers: list[LeaveAnswer] = []
        for member_id, instance_id in leave.members:
            known_as, error = member_id, ErrorCode.NONE
            if not member_id and instance_id is not None:
                known_as = self.state.statics.get(instance_id, "")
            try:
                self._classic_member(known_as, instance_id)
                if known_as not in gone:
                    gone.append(known_as)
            except BrokerError as refusal:
                error = refusal.code
            answers.append(LeaveAnswer(member_id, instance_id, error))
        if not gone:
            return Decision(draft=Draft(self.state), answer=tuple(answers))
        return self._remove(gone, tuple(answers), now_ms)

    def _classic_member(
        self, member_id: str, instance_id: str | None
    ) -> tuple[str, ClassicMetadata, CurrentAssignment]:
        """Return a member that speaks the classic protocol; raises BrokerError."""
        if instance_id is not None:
            self._static_member(member_id, instance_id)
        subscription = self.state.subscriptions.get(member_id)
        if subscription is None or subscription.classic is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id, subscription.classic, self.state.owned_by(member_id)

    def _check_generation_of(self, current: CurrentAssignment, generation: int) -> None:
        if current.epoch != generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)


def refusal_of(event: Join | Sync | Heartbeat | Leave, error: ErrorCode) -> Any:
    """Return the answer of its kind that says only `error`."""
    match event:
        case Join():
            return JoinAnswer(error=error, member_id=event.member_id)
        case Sync():
            return SyncAnswer(error=error)
        case Heartbeat():
            return error
        case Leave():
            return tuple(LeaveAnswer(member_id, instance_id, error) for member_id, instance_id in event.members)
