"""The members of a consumer group that speak the new protocol (KIP-848): all that they ask is a heartbeat."""

from dataclasses import replace

from log_broker.core.groups.consumer_assignment import Assignment
from log_broker.core.groups.consumer_drafts import Decision, Draft
from log_broker.core.groups.consumer_events import ConsumerGroupSettings, ConsumerHeartbeat, ConsumerHeartbeatAnswer
from log_broker.core.groups.consumer_group_records import (
    LEFT_EPOCH,
    NO_PARTITIONS,
    STATIC_LEFT_EPOCH,
    ConsumerRecord,
    RecordKind,
    Subscription,
)
from log_broker.core.groups.consumer_group_state import ConsumerState
from log_broker.core.groups.consumer_members import Membership, check_static
from log_broker.core.groups.consumer_timers import MemberTimers
from log_broker.errors import BrokerError, ErrorCode


class ConsumerHeartbeats:
    """The decisions about heartbeats."""

    def __init__(self, membership: Membership, assignment: Assignment, timers: MemberTimers) -> None:
        self._membership = membership
        self._assignment = assignment
        self._timers = timers

    def decide(self, draft: Draft, beat: ConsumerHeartbeat, settings: ConsumerGroupSettings, now_ms: int) -> Decision:
        """Decide on a member that joins, stays or leaves; raises BrokerError for an answer that is only an error."""
        _check_form(beat, settings.assignors)
        if beat.member_epoch in {LEFT_EPOCH, STATIC_LEFT_EPOCH}:
            return self._leave(draft, beat, now_ms)
        self._membership.check_seat(draft.state, beat.member_id, beat.instance_id)
        member_id, replaced = _identify(beat, draft)
        before = draft.state.owned_by(member_id)
        known = draft.state.subscriptions.get(member_id, Subscription())
        self._assignment.settle(
            draft, member_id, _updated(known, beat), beat.owned, now_ms, may_describe=beat.may_describe
        )
        current = draft.state.owned_by(member_id)
        whole = beat.member_epoch == 0 or (
            beat.rebalance_timeout_ms != -1 and beat.topics is not None and beat.owned is not None
        )
        answer = ConsumerHeartbeatAnswer(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            assignment=current.assigned if whole or current.assigned != before.assigned else None,
        )

        def after(at_ms: int) -> None:
            timers = self._timers
            if replaced is not None:
                timers.forget(replaced)
            timers.joins.drop(member_id)
            timers.syncs.drop(member_id)
            timers.hear(draft.state, member_id, at_ms)
            timers.watch_revocation(draft.state, member_id, before, at_ms)

        return Decision(answer=answer, after=after)

    def _leave(self, draft: Draft, beat: ConsumerHeartbeat, now_ms: int) -> Decision:
        if beat.instance_id is not None:
            check_static(draft.state, beat.member_id, beat.instance_id)
        elif beat.member_id not in draft.state.subscriptions:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of the group.")
        answer = ConsumerHeartbeatAnswer(member_id=beat.member_id, member_epoch=beat.member_epoch)
        if beat.member_epoch == LEFT_EPOCH:
            return self._membership.remove(draft, [beat.member_id], now_ms, answer=answer)
        away = replace(draft.state.owned_by(beat.member_id), epoch=STATIC_LEFT_EPOCH, revoking=NO_PARTITIONS)
        draft.add(ConsumerRecord(RecordKind.CURRENT_MEMBER, beat.member_id, away))

        def after(_: int) -> None:
            self._timers.stop_revocation(beat.member_id)

        return Decision(answer=answer, after=after)


def _check_form(beat: ConsumerHeartbeat, assignors: tuple[str, ...]) -> None:
    """Refuse what no client may send, whatever the group's state."""
    for text, what in ((beat.instance_id, "InstanceId"), (beat.rack_id, "RackId")):
        if text is not None and not text.strip():
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{what} can't be empty.")
    if not beat.member_id.strip() and (beat.names_itself or beat.member_epoch != 0):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if beat.member_epoch < STATIC_LEFT_EPOCH:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"MemberEpoch is {beat.member_epoch}, but must be -2 or more.")
    if beat.member_epoch == STATIC_LEFT_EPOCH and beat.instance_id is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    if beat.member_epoch == 0:
        if beat.rebalance_timeout_ms == -1:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
        if beat.owned is None or beat.owned:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
        if beat.topics is None and beat.regex is None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null."
            )
    if beat.assignor is not None and beat.assignor not in assignors:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _identify(beat: ConsumerHeartbeat, draft: Draft) -> tuple[str, str | None]:
    """Return the id of the member and that of the one whose place it takes; raises BrokerError."""
    state = draft.state
    member_id = beat.member_id or beat.fresh_id
    if beat.instance_id is None:
        if member_id in state.subscriptions:
            _check_member_epoch(state, member_id, beat)
        elif beat.member_epoch != 0:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group.")
        return member_id, None
    if beat.member_epoch != 0:
        check_static(state, member_id, beat.instance_id)
        _check_member_epoch(state, member_id, beat)
        return member_id, None
    old_id = state.statics.get(beat.instance_id)
    if old_id is None:
        return member_id, None
    is_classic = state.subscriptions[old_id].classic is not None
    if not is_classic and state.owned_by(old_id).epoch != STATIC_LEFT_EPOCH:
        if old_id == member_id:
            _check_member_epoch(state, member_id, beat)
            return member_id, None
        raise BrokerError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {beat.instance_id} cannot join the group because the "
            f"instance id is owned by {old_id} member.",
        )
    draft.replace(old_id, member_id)
    return member_id, old_id


def _check_member_epoch(state: ConsumerState, member_id: str, beat: ConsumerHeartbeat) -> None:
    current = state.owned_by(member_id)
    if beat.member_epoch == current.epoch:
        return
    repeats = (
        beat.member_epoch < current.epoch
        and beat.member_epoch == current.previous_epoch
        and beat.owned is not None
        and beat.owned <= current.assigned
    )
    if not repeats:
        size = "greater" if beat.member_epoch > current.epoch else "smaller"
        raise BrokerError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {size} member epoch ({beat.member_epoch}) than the one known by the "
            f"group coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _updated(known: Subscription, beat: ConsumerHeartbeat) -> Subscription:
    """Return a subscription with what a heartbeat says again."""
    return Subscription(
        instance_id=known.instance_id if beat.instance_id is None else beat.instance_id,
        rack_id=known.rack_id if beat.rack_id is None else beat.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=known.topics if beat.topics is None else beat.topics,
        regex=known.regex if beat.regex is None else beat.regex or None,
        rebalance_timeout_ms=known.rebalance_timeout_ms if beat.rebalance_timeout_ms < 0 else beat.rebalance_timeout_ms,
        assignor=known.assignor if beat.assignor is None else beat.assignor,
    )
