"""The timers of a consumer group's members (KIP-848)."""

from collections.abc import Callable

from log_broker.core.groups.consumer_events import ConsumerGroupSettings
from log_broker.core.groups.consumer_group_records import CurrentAssignment, MemberState
from log_broker.core.groups.consumer_group_state import ConsumerState
from log_broker.core.groups.timers import Timers

RETRY_MS = 1_000


class MemberTimers:
    """By member id: until when each must have done what it has to; who is late is taken out of the group."""

    def __init__(self, settings: Callable[[], ConsumerGroupSettings]) -> None:
        self._settings = settings
        self._sessions = Timers()  # to be heard of
        self._revocations = Timers()  # to have given up what it has to
        self.joins = Timers()  # a classic member: to have joined again
        self.syncs = Timers()  # a classic member: to have asked for its assignment
        self._all = (self._sessions, self._revocations, self.joins, self.syncs)

    def hear(self, state: ConsumerState, member_id: str, now_ms: int) -> None:
        """Restart a member's session."""
        subscription = state.subscriptions.get(member_id)
        if subscription is None:
            return
        classic = subscription.classic
        timeout_ms = self._settings().session_timeout_ms if classic is None else classic.session_timeout_ms
        self._sessions.set(member_id, now_ms + timeout_ms)

    def watch_revocation(self, state: ConsumerState, member_id: str, before: CurrentAssignment, now_ms: int) -> None:
        """A member that has to give up partitions has its rebalance timeout to do so, from the first answer on."""
        current = state.owned_by(member_id)
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._revocations.drop(member_id)
        elif current != before:
            self._revocations.set(member_id, now_ms + state.subscriptions[member_id].rebalance_timeout_ms)

    def stop_revocation(self, member_id: str) -> None:
        self._revocations.drop(member_id)

    def forget(self, member_id: str) -> None:
        for timers in self._all:
            timers.drop(member_id)

    def earliest_ms(self) -> int | None:
        return min((at for timers in self._all if (at := timers.earliest_ms()) is not None), default=None)

    def due(self, now_ms: int) -> list[str]:
        """Return the members that are late, each once."""
        return list(dict.fromkeys(member_id for timers in self._all for member_id in timers.due(now_ms)))

    def postpone(self, now_ms: int) -> None:
        """What is overdue could not be stored: try again, but not at once."""
        for timers in self._all:
            for member_id in timers.due(now_ms + RETRY_MS):
                timers.set(member_id, now_ms + RETRY_MS)
