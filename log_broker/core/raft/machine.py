"""
What every state machine of the core offers, and so all that a driver needs to know of one.

A driver keeps three promises. It runs effects in list order, and those of one call before those of the next; where an
effect's class says that it must be durable first, nothing behind it is done until it is. It calls `tick` no earlier
than `next_deadline_ms()` and soon after it. `now_ms` is monotonic time: it means nothing outside this process, and a
core stays safe, though not prompt, if it leaps.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

Event_contra = TypeVar("Event_contra", contravariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)


class Machine(Protocol[Event_contra, Effect_co]):
    """A state machine without I/O, clock or chance."""

    def handle(self, event: Event_contra, now_ms: int) -> Sequence[Effect_co]:
        """Take one event and return what must be done, in order."""
        ...

    def tick(self, now_ms: int) -> Sequence[Effect_co]:
        """Do what has become due by time alone; too early a call does nothing."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next; None: not before another event."""
        ...
