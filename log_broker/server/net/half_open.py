"""
Connections that were accepted and not let in yet: in a TLS handshake, or signing in.

Each has so long; beyond so many, the oldest goes, for who means it is through in a moment. Beyond so many bytes of
requests that are not complete, the one with the most of them goes.

A TLS handshake holds a quarter of a megabyte. What a flood of them has taken lies in so many pieces among other things
that the allocator would keep most of it for good, some more with each flood: it is told to give it back.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

HALF_OPEN_MAX = 1000
HALF_OPEN_SECONDS_MAX = 30.0
HALF_OPEN_BYTES_MAX = 16 * 1024 * 1024
FLOOD_SHARE, EBB_SHARE = 0.25, 0.1  # of the most: what is a flood, and when it is over
EBB_SECONDS = 5.0
_STOPPING = "the broker is stopping"


class Pending(Protocol):
    """A connection that is not let in yet; `host` is the address that it comes from, without its port."""

    @property
    def host(self) -> str: ...

    def give_up(self, reason: str) -> None:
        """End it."""
        ...


class HalfOpen:
    """Those of one node, in the order in which they came."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        most: int = HALF_OPEN_MAX,
        seconds: float = HALF_OPEN_SECONDS_MAX,
        room_for: Callable[[str], int] | None = None,
        after_flood: Callable[[], None] | None = None,
    ) -> None:
        """
        `room_for` says how many more connections an address may have beside those that are let in.

        `after_flood` is called in a thread when there were many and are few again.
        """
        self._loop = loop
        self._most = most
        self._room_for = room_for
        self._seconds = seconds
        self._all: dict[Pending, float] = {}  # when each has to be through
        self._bytes: Counter[Pending] = Counter()
        self._of_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._after_flood = after_flood
        self._is_flooded = False
        self._is_closed = False
        self._ebb: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def is_crowded(self, host: str) -> bool:
        """Whether an address has as many connections as it may have, those counted that are not let in yet."""
        return self._room_for is not None and self._of_address[host] >= self._room_for(host)

    def enter(self, pending: Pending) -> None:
        """Take one in; after :meth:`close` it is ended at once: it was accepted before, and is made only now."""
        if self._is_closed:
            pending.give_up(_STOPPING)
            return
        if len(self._all) >= self._most:
            self._end(next(iter(self._all)), f"{self._most} others wait to be let in")
        self._all[pending] = self._loop.time() + self._seconds
        self._is_flooded = self._is_flooded or len(self._all) >= self._most * FLOOD_SHARE
        self._of_address[pending.host] += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)

    def leave(self, pending: Pending) -> None:
        """Forget one that is through, or gone."""
        if self._all.pop(pending, None) is not None:
            self._of_address[pending.host] -= 1
            if not self._of_address[pending.host]:
                del self._of_address[pending.host]
        self._bytes.pop(pending, None)
        if self._is_flooded and self._ebb is None and len(self._all) <= self._most * EBB_SHARE:
            self._ebb = self._loop.call_later(EBB_SECONDS, self._ebbed)

    def holds(self, pending: Pending, size: int) -> None:
        """Note how many bytes one holds."""
        if pending in self._all:
            self._bytes[pending] = size
            if self._bytes.total() > HALF_OPEN_BYTES_MAX:
                self._end(self._bytes.most_common(1)[0][0], "too much was sent before signing in")

    def close(self) -> None:
        """End all of them, and those that are still accepted."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_flooded = False
        if self._ebb is not None:
            self._ebb.cancel()
        for pending in list(self._all):
            self._end(pending, _STOPPING)

    def _ebbed(self) -> None:
        self._ebb = None
        self._is_flooded = False
        if self._after_flood is not None:
            self._loop.run_in_executor(None, self._after_flood)

    def _end(self, pending: Pending, reason: str) -> None:
        self.leave(pending)
        pending.give_up(reason)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for pending, deadline in list(self._all.items()):
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._expire)
                return
            self._end(pending, f"it was not let in within {self._seconds:.0f} s")
