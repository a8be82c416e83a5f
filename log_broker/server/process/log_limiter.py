"""
What goes wrong again and again, such as a node that cannot be reached, told without filling the log.

It is told at once when it begins, and after that every half a minute, with how often it has come since.
"""

import logging
from collections.abc import Callable

TELL_SECONDS = 30.0


class RateLimitedLog:
    """One thing that can go wrong; `clock` gives seconds that only grow."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float], level: int = logging.WARNING) -> None:
        self._log = log
        self._clock = clock
        self._level = level
        self._told_at: float | None = None
        self._untold = 0
        self._is_open = False  # told, and not yet that it is over

    def failed(self, message: str, *values: object) -> None:
        """It has gone wrong once more."""
        now = self._clock()
        if self._told_at is None:
            self._log.log(self._level, message, *values)
        elif now - self._told_at >= TELL_SECONDS:
            often = f" ({self._untold + 1} times in {now - self._told_at:.0f} s)" if self._untold else ""
            self._log.log(self._level, f"{message}%s", *values, often)
        else:
            self._untold += 1
            return
        self._told_at, self._untold, self._is_open = now, 0, True

    def recovered(self, message: str, *values: object) -> None:
        """It goes well; told to who was told that it did not. What comes and goes is told no more often for that."""
        if self._is_open:
            self._is_open = False
            self._log.info(message, *values)
