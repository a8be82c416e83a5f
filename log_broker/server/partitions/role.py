"""
A replica's role in this process: leading with followers, or following; see `core.partition.roles`.
"""

import asyncio

from log_broker.core.partition.replication import IsrProposal, Leadership
from log_broker.errors import ErrorCode
from log_broker.server.partitions.readers import ReplicaWaiters, Waiters
from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.runner import EffectRunner


class ReplicaRole:
    """Changes the role, and looks after a leader's followers in time."""

    def __init__(
        self, replica: Replica, runner: EffectRunner, waiters: Waiters, follower_waiters: ReplicaWaiters
    ) -> None:
        self._replica = replica
        self._runner = runner
        self._waiters = waiters
        self._follower_waiters = follower_waiters
        self._timer: asyncio.TimerHandle | None = None

    def become_leader(self, leadership: Leadership) -> None:
        """Lead in this epoch, or take in the committed ISR while leading; anything older changes nothing."""
        replica = self._replica
        effects = replica.core.roles.become_leader(
            leadership,
            node_id=replica.membership.node_id,
            lag_ms_max=replica.membership.replica_lag_time_max_ms,
            steady_ms=replica.steady_ms(),
        )
        self._runner.run(effects)
        self.set_timer()
        self._runner.set_flush_timer()

    def become_follower(self, leader_epoch: int, leader_id: int = -1) -> None:
        """Follow in this epoch; -1: there is no leader now. An older epoch changes nothing."""
        state = self._replica.state
        led = state.is_leader
        self._runner.run(self._replica.core.roles.become_follower(leader_epoch, leader_id))
        if led and not state.is_leader:
            # Who waits here for more is to ask the new leader.
            self._waiters.wake_all()
            self._follower_waiters.wake_all()
            self.set_timer()

    def isr_settled(self, leadership: Leadership) -> None:
        """Take the state that the controller answered a proposal with."""
        replica = self._replica
        self._runner.run(replica.core.roles.isr_settled(leadership, steady_ms=replica.steady_ms()))
        self.set_timer()

    def isr_refused(self, error: ErrorCode, proposal: IsrProposal | None = None) -> None:
        """
        Take the controller's refusal, or that its answer never came (any retriable error).

        One that is about another `proposal` than that under way changes nothing.
        """
        replica = self._replica
        leading = replica.state.leading
        if proposal is None or (leading is not None and leading.proposal is proposal):
            self._runner.run(replica.core.roles.isr_refused(error, steady_ms=replica.steady_ms()))
            self.set_timer()

    def set_timer(self) -> None:
        """Look at the followers when that is due next; not at all once the replica is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        replica = self._replica
        deadline_ms = replica.core.roles.followers_deadline_ms()
        if deadline_ms is not None and not replica.is_closed:
            delay_ms = max(deadline_ms - replica.steady_ms(), 0)
            self._timer = replica.loop.call_later(delay_ms / 1000, self._check_followers)

    def _check_followers(self) -> None:
        self._timer = None
        self._runner.run(self._replica.core.roles.check_followers(self._replica.steady_ms()))
        self.set_timer()
