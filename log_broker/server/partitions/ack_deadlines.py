"""
How long produce requests wait for the followers: each for what its client allows, then it is told REQUEST_TIMED_OUT.

Clients mostly all allow the same time, so requests of one timeout wait in one queue, in order, and one timer stands for
all of them. An answered request is dropped when it comes to the front: nothing has to be taken out or cancelled. Where
clients name ever other timeouts, those beyond the first `QUEUES_MAX` share a queue with their like and wait longer.
"""

import asyncio
from collections import deque
from typing import Protocol

SWEEP_SECONDS_MIN = 0.01
QUEUES_MAX = 64
TIMEOUT_MS_MAX = 15 * 60 * 1000  # no stock client allows more


class Waiting(Protocol):
    """A request that may have been answered by now."""

    @property
    def is_answered(self) -> bool: ...

    def time_is_up(self) -> None: ...


class AckDeadlines:
    """All requests of one node that wait for followers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[int, deque[tuple[float, Waiting]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, request: Waiting, timeout_ms: int) -> None:
        """See that the request is told when its time is up; with no time at all, in the next turn."""
        timeout_ms = min(max(timeout_ms, 0), TIMEOUT_MS_MAX)
        if timeout_ms not in self._queues and len(self._queues) >= QUEUES_MAX:
            timeout_ms = 1 << timeout_ms.bit_length()
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = deque()
        while queue and queue[0][1].is_answered:
            queue.popleft()
        at = self._loop.time() + timeout_ms / 1000
        queue.append((at, request))
        if self._timer is None or at < self._timer_at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        due: list[Waiting] = []
        next_at: float | None = None
        for timeout_ms, queue in list(self._queues.items()):
            while queue and (queue[0][1].is_answered or queue[0][0] <= now):
                due.append(queue.popleft()[1])
            if not queue:
                del self._queues[timeout_ms]
            elif next_at is None or queue[0][0] < next_at:
                next_at = queue[0][0]
        if next_at is not None:
            self._arm(max(next_at, now + SWEEP_SECONDS_MIN))
        for request in due:
            if not request.is_answered:
                request.time_is_up()
