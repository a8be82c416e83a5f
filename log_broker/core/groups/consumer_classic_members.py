"""
Members of a consumer group of the new protocol (KIP-848) that still speak the classic one.

To them the group looks classic: an epoch is a generation, and each step of their reconciliation is a rebalance that a
heartbeat calls for, a join takes and a sync ends. Nobody leads: the coordinator assigns.
"""

from dataclasses import replace

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.consumer_assignment import Assignment
from log_broker.core.groups.consumer_drafts import Decision, Draft
from log_broker.core.groups.consumer_group_records import (
    ClassicMetadata,
    CurrentAssignment,
    MemberState,
    Subscription,
)
from log_broker.core.groups.consumer_group_state import ConsumerGroupState, ConsumerState
from log_broker.core.groups.consumer_members import Membership, check_static
from log_broker.core.groups.consumer_protocol import (
    CONSUMER_PROTOCOL,
    ClassicSubscription,
    MalformedSubscriptionError,
    read_subscription,
    write_assignment,
)
from log_broker.core.groups.consumer_timers import MemberTimers
from log_broker.core.groups.conversion import from_places, to_places
from log_broker.core.groups.protocol import Heartbeat, Join, JoinAnswer, Leave, LeaveAnswer, Sync, SyncAnswer
from log_broker.errors import BrokerError, ErrorCode


class ClassicMembers:
    """The decisions about classic members."""

    def __init__(
        self, cluster: ClusterImage, membership: Membership, assignment: Assignment, timers: MemberTimers
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._assignment = assignment
        self._timers = timers

    def decide(self, draft: Draft, event: Join | Sync | Heartbeat | Leave, now_ms: int) -> Decision:
        """Decide on an event of a classic member; raises BrokerError for an answer that is only an error."""
        match event:
            case Join():
                return self._join(draft, event, now_ms)
            case Sync():
                return self._sync(draft.state, event)
            case Heartbeat():
                return self._heartbeat(draft.state, event, now_ms)
            case Leave():
                return self._leave(draft, event, now_ms)

    def _join(self, draft: Draft, join: Join, now_ms: int) -> Decision:
        if not draft.state.subscriptions:
            # The last member has gone: who joins without an id makes the group classic, as Kafka's coordinator has it.
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._membership.check_seat(draft.state, join.member_id, join.instance_id)
        if join.protocol_type != CONSUMER_PROTOCOL or not _has_common_protocol(draft.state, join):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not join.member_id and join.instance_id is None and join.id_round_trip:
            return Decision(answer=JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.fresh_id))
        try:
            said = read_subscription(join.protocols[0][1])
        except MalformedSubscriptionError as error:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
        member_id, replaced = _take_seat(draft, join)
        known = draft.state.subscriptions.get(member_id, Subscription())
        owned = to_places(said.owned, self._cluster)
        # It has no regular expression, and what it may see is not what those who have one may.
        subscription = _subscription(known, join, said)
        self._assignment.settle(draft, member_id, subscription, owned, now_ms, matches=False)
        answer = JoinAnswer(
            member_id=member_id,
            generation=draft.state.owned_by(member_id).epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol=join.protocols[0][0],
        )
        downgrade = None
        if replaced is not None:
            settled = draft.state.state is ConsumerGroupState.STABLE
            downgrade = self._membership.downgrade(draft.state, now_ms, rebalances=not settled)

        def after(at_ms: int) -> None:
            timers = self._timers
            if replaced is not None:
                timers.forget(replaced)
            timers.joins.drop(member_id)
            timers.stop_revocation(member_id)
            timers.syncs.set(member_id, at_ms + join.rebalance_timeout_ms)
            timers.hear(draft.state, member_id, at_ms)

        return Decision(answer=answer, after=after, downgrade=downgrade)

    def _sync(self, state: ConsumerState, sync: Sync) -> Decision:
        classic, current = _classic_member(state, sync.member_id, sync.instance_id)
        _check_generation(current, sync.generation)
        protocol, metadata = classic.protocols[0]
        if sync.protocol_type not in {None, CONSUMER_PROTOCOL} or sync.protocol not in {None, protocol}:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if state.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        owned = from_places(current.assigned, self._cluster)
        answer = SyncAnswer(
            protocol_type=CONSUMER_PROTOCOL,
            protocol=protocol,
            assignment=write_assignment(owned, read_subscription(metadata).version),
        )

        def after(now_ms: int) -> None:
            self._timers.syncs.drop(sync.member_id)
            self._timers.hear(state, sync.member_id, now_ms)

        return Decision(answer=answer, after=after)

    def _heartbeat(self, state: ConsumerState, heartbeat: Heartbeat, now_ms: int) -> Decision:
        member_id, timers = heartbeat.member_id, self._timers
        _, current = _classic_member(state, member_id, heartbeat.instance_id)
        _check_generation(current, heartbeat.generation)
        timers.hear(state, member_id, now_ms)
        error = ErrorCode.NONE
        if (
            current.epoch < state.epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or (current.state is MemberState.UNRELEASED_PARTITIONS and not state.waits_for_others(member_id))
        ):
            error = ErrorCode.REBALANCE_IN_PROGRESS
            if member_id not in timers.joins:
                timers.joins.set(member_id, now_ms + state.subscriptions[member_id].rebalance_timeout_ms)
        return Decision(answer=error)

    def _leave(self, draft: Draft, leave: Leave, now_ms: int) -> Decision:
        gone: dict[str, None] = {}
        answers: list[LeaveAnswer] = []
        for member_id, instance_id in leave.members:
            known_as, error = member_id, ErrorCode.NONE
            if not member_id and instance_id is not None:
                known_as = draft.state.statics.get(instance_id, "")
            try:
                _classic_member(draft.state, known_as, instance_id)
                gone[known_as] = None
            except BrokerError as refusal:
                error = refusal.code
            answers.append(LeaveAnswer(member_id, instance_id, error))
        if not gone:
            return Decision(answer=tuple(answers))
        return self._membership.remove(draft, gone, now_ms, answer=tuple(answers))


def _has_common_protocol(state: ConsumerState, join: Join) -> bool:
    others = [
        {name for name, _ in subscription.classic.protocols}
        for member_id, subscription in state.classic_members()
        if member_id != join.member_id and subscription.classic is not None
    ]
    offered = {name for name, _ in join.protocols}
    return bool(offered.intersection(*others))


def _take_seat(draft: Draft, join: Join) -> tuple[str, str | None]:
    """Return the id of the member and that of the one whose place it takes."""
    member_id = join.member_id or join.fresh_id
    if join.instance_id is None:
        return member_id, None
    if join.member_id:
        check_static(draft.state, join.member_id, join.instance_id)
        return member_id, None
    old_id = draft.state.statics.get(join.instance_id)
    if old_id is not None:
        draft.replace(old_id, member_id)
    return member_id, old_id


def _subscription(known: Subscription, join: Join, said: ClassicSubscription) -> Subscription:
    return replace(
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


def _classic_member(
    state: ConsumerState, member_id: str, instance_id: str | None
) -> tuple[ClassicMetadata, CurrentAssignment]:
    """Return what is known of a member that speaks the classic protocol; raises BrokerError."""
    if instance_id is not None:
        check_static(state, member_id, instance_id)
    subscription = state.subscriptions.get(member_id)
    if subscription is None or subscription.classic is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    return subscription.classic, state.owned_by(member_id)


def _check_generation(current: CurrentAssignment, generation: int) -> None:
    if current.epoch != generation:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
