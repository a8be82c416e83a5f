"""
Virtual time: events in a queue, one at a time, and everything drawn from one seed.

Time is in whole microseconds since the start. Whoever draws chance asks for a stream of its own by name, so that what
one part draws does not shift what another does.
"""

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]
AT_ONCE_MAX = 20_000
"""More events in one microsecond are something that goes round and round."""


class InvariantError(AssertionError):
    """A promise was broken: `check` names it."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check


class Kernel:
    """The clock, the queue of events and the trace of one run."""

    def __init__(self, seed: int, *, trace_lines_max: int = 0) -> None:
        self.seed = seed
        self.now_us = 0
        self.events = 0
        self._at_once = 0
        self.after_event: Action = _nothing
        self.tracing = trace_lines_max > 0
        self._trace_lines_max = trace_lines_max
        self._lines: list[str] = []
        self._queue: list[tuple[int, int, Action]] = []
        self._pushed = 0

    def stream(self, name: str) -> random.Random:
        """Return a source of chance that depends on the seed and the name only."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 a simulation must be repeatable

    def at(self, when_us: int, action: Action) -> None:
        """Run `action` then; those of one instant in the order of asking."""
        self._pushed += 1
        heapq.heappush(self._queue, (max(when_us, self.now_us), self._pushed, action))

    def after(self, delay_us: int, action: Action) -> None:
        """Run `action` so much later."""
        self.at(self.now_us + delay_us, action)

    def run_until(self, end_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Run events up to `end_us`, or until `done`, which is asked after each; return whether it was."""
        queue = self._queue
        while queue and queue[0][0] <= end_us:
            when_us, _, action = heapq.heappop(queue)
            if when_us > self.now_us:
                self.now_us, self._at_once = when_us, 0
            self._at_once += 1
            if self._at_once > AT_ONCE_MAX:
                raise InvariantError("time goes on", f"{AT_ONCE_MAX:,} events at {when_us} µs: something does not wait")
            action()
            self.after_event()
            if done is not None and done():
                return True
        self.now_us = max(self.now_us, end_us)
        return done is not None and done()

    def trace(self, who: str, what: str) -> None:
        """Note a line of the story; ask `tracing` first where making the text costs."""
        if self.tracing:
            self._lines.append(f"{self.now_us / 1e6:10.6f}  {who:<8}{what}")
            if len(self._lines) > 2 * self._trace_lines_max:
                del self._lines[: -self._trace_lines_max]

    def story(self) -> list[str]:
        """Return the last lines."""
        return self._lines[-self._trace_lines_max :] if self.tracing else []


def _nothing() -> None:
    """No check."""
