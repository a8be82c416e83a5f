"""Seats in a consumer group of the new protocol (KIP-848): who may take one, and what follows when one is given up."""

from collections.abc import Iterable
from typing import Any

from log_broker.core.groups.consumer_assignment import Assignment
from log_broker.core.groups.consumer_drafts import Decision, Downgrade, Draft
from log_broker.core.groups.consumer_events import ConsumerSupport
from log_broker.core.groups.consumer_group_state import ConsumerState
from log_broker.core.groups.consumer_timers import MemberTimers
from log_broker.core.groups.conversion import classic_members
from log_broker.errors import BrokerError, ErrorCode


class Membership:
    """The rules that members of both protocols share."""

    def __init__(self, support: ConsumerSupport, assignment: Assignment, timers: MemberTimers) -> None:
        self._cluster = support.cluster
        self._settings = support.settings
        self._assignment = assignment
        self._timers = timers

    def check_seat(self, state: ConsumerState, member_id: str, instance_id: str | None) -> None:
        """Raise BrokerError(GROUP_MAX_SIZE_REACHED) for one member too many."""
        members_max = self._settings().members_max
        is_known = member_id in state.subscriptions or instance_id in state.statics
        if not is_known and len(state.subscriptions) >= members_max:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {members_max} members.",
            )

    def remove(self, draft: Draft, members: Iterable[str], now_ms: int, *, answer: Any = None) -> Decision:
        """Take members out; what is left may be a classic group then."""
        gone = list(members)
        for member_id in gone:
            draft.forget(member_id)

        def after(_: int) -> None:
            for member_id in gone:
                self._timers.forget(member_id)

        downgrade = self.downgrade(draft.state, now_ms)
        if downgrade is None:
            self._assignment.members_gone(draft)
        return Decision(answer=answer, after=after, downgrade=downgrade)

    def downgrade(self, state: ConsumerState, now_ms: int, *, rebalances: bool = True) -> Downgrade | None:
        """Return the classic group that a group becomes when all its members are classic and the policy allows it."""
        settings = self._settings()
        if (
            settings.allows_downgrade
            and 0 < len(state.subscriptions) <= settings.classic_members_max
            and all(subscription.classic is not None for subscription in state.subscriptions.values())
        ):
            members = classic_members(state, self._cluster, now_ms)
            return Downgrade(members=members, generation=state.epoch, rebalances=rebalances)
        return None


def check_static(state: ConsumerState, member_id: str, instance_id: str) -> None:
    """Raise BrokerError unless the static member is this one."""
    known_as = state.statics.get(instance_id)
    if known_as is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known_as != member_id:
        raise BrokerError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known_as}.",
        )
