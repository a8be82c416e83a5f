"""
Timers by name, one each, for machines that say when they must be looked at next.
"""

import asyncio
from collections.abc import Callable

from log_broker.server.process.ports import Process


class Deadlines:
    """Calls `time_is_up` with a name when its time has come; that it comes too early must do no harm."""

    def __init__(self, node: Process, time_is_up: Callable[[str], None]) -> None:
        self._node = node
        self._time_is_up = time_is_up
        # The loop's time beside each timer: uvloop makes one that is due at once a plain handle, which does not tell.
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}

    def meet(self, name: str, deadline_ms: int) -> None:
        """
        See that the name's next deadline, on the node's clock, is met.

        A timer that is early enough is left alone: most deadlines only move back, and moving a timer each time costs
        more than one look too many.
        """
        loop = self._node.loop
        at = loop.time() + max(deadline_ms - self._node.clock_ms(), 0) / 1000
        running = self._timers.get(name)
        if running is not None:
            if running[0] <= at:
                return
            running[1].cancel()
        self._timers[name] = (at, loop.call_at(at, self._fire, name))

    def drop(self, name: str) -> None:
        """Forget the name's deadline, if it has one."""
        running = self._timers.pop(name, None)
        if running is not None:
            running[1].cancel()

    def drop_all(self) -> None:
        """Forget every deadline."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, name: str) -> None:
        del self._timers[name]
        self._time_is_up(name)
