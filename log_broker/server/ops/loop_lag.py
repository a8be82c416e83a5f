"""
How late the event loop is: the time between when a timer is due and when it runs.

While one turn of the loop lasts no client is answered, no heartbeat is sent and no fetch of a follower is taken, so a
long one is what looks like a dead node from outside. A timer that fires ten times a second sees each turn that is long.
"""

import logging
import time
from typing import TYPE_CHECKING, Protocol

from log_broker.server.process.counters import Durations
from log_broker.server.process.log_limiter import TELL_SECONDS, RateLimitedLog
from log_broker.server.process.ports import Cluster, HasEvents, HasMachine, Process

if TYPE_CHECKING:
    import asyncio


TICK_SECONDS = 0.1

_log = logging.getLogger(__name__)


class LagHost(Cluster, HasEvents, HasMachine, Process, Protocol):
    """What watching the event loop asks of the node."""


class LoopLag:
    """The lag of a node's event loop since it started."""

    def __init__(self, node: LagHost) -> None:
        self._node = node
        self.durations = Durations()
        self.longest_seconds = 0.0
        self._due = 0.0
        self._cpu = 0.0  # of the loop's thread, at the tick before
        self._timer: asyncio.TimerHandle | None = None
        self._trouble = RateLimitedLog(_log, node.loop.time)
        self._noted_at: float | None = None

    def start(self) -> None:
        """Begin to measure, where time is real."""
        cpu = self._node.machine.cpu_seconds()
        if cpu is not None:
            self._arm(cpu)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, cpu: float) -> None:
        self._cpu = cpu
        self._due = time.monotonic() + TICK_SECONDS
        self._timer = self._node.loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        lag = max(time.monotonic() - self._due, 0.0)
        cpu = self._node.machine.cpu_seconds() or 0.0
        self.durations.add(lag)
        self.longest_seconds = max(self.longest_seconds, lag)
        if lag * 1000 >= self._node.config.fluvial_event_loop_lag_warn_ms:
            self._report(lag, cpu - self._cpu)
        self._arm(cpu)

    def _report(self, lag: float, cpu: float) -> None:
        """Say that nobody was answered for a while, and whether that was work of this process or the machine's."""
        node = self._node
        self._trouble.failed(
            "the event loop was %.0f ms late; its thread worked for %.0f ms of them", lag * 1e3, cpu * 1e3
        )
        now = node.loop.time()
        is_due = self._noted_at is None or now - self._noted_at >= TELL_SECONDS
        if is_due and len(node.cluster.brokers) > 1:
            self._noted_at = now
            text = f"the event loop of node {node.config.node_id} was {lag * 1e3:.0f} ms late"
            node.events.note("event_loop_late", text, lag_ms=round(lag * 1e3), cpu_ms=round(cpu * 1e3))
