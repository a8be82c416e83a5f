"""
One bound on the bytes of requests and answers that all connections of a node hold together (queued.max.request.bytes).

A connection that would go beyond it is not refused: it is not read from until others have given enough back, first come
first served. Whoever has been let in can always finish, because a large request is counted in full before its bytes are
read. The first bytes of each connection are free, so that what ordinary requests take costs no bookkeeping and no one
who only waits (a long poll, a group member) keeps others out: the bound of a node is the limit and that share for each.
"""

import asyncio
from typing import Protocol

FREE_BYTES = 64 * 1024
STAGED_BYTES = 256 * 1024  # what a connection may bring when it is read again
ANSWER_BYTES_LEAST = 64 * 1024


class Holder(Protocol):
    """A connection that waits for memory."""

    def bytes_wanted(self) -> int:
        """Bytes that must fit before it goes on, and that it will count then; 0 if it does not know yet."""
        ...

    def memory_freed(self) -> None: ...


class MemoryBudget:
    """What is held and who waits; everything in the event loop's thread."""

    __slots__ = ("_limit", "_loop", "_resume_asked", "_waiting", "answer_bytes_max", "held", "is_full")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: dict[Holder, None] = {}
        self._resume_asked = False
        self.held = 0
        # Looked at for every request, so they are kept and not worked out. An answer may take half of what is left:
        # many large ones at once become smaller.
        self.is_full = False
        self.answer_bytes_max = max(limit // 2, ANSWER_BYTES_LEAST)

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self.change(0)
        self._ask_resume()

    @property
    def waiting(self) -> int:
        """How many connections are not read from for want of memory."""
        return len(self._waiting)

    def admits(self, size: int) -> bool:
        """Whether `size` bytes more fit, for one that does not stand in the queue; others may have come first."""
        return not self._waiting and self._fits(size)

    def change(self, by: int) -> None:
        """Count bytes that are held from now on, or with a negative number no longer are."""
        self.held += by
        self.is_full = self.held >= self._limit
        self.answer_bytes_max = max((self._limit - self.held) // 2, ANSWER_BYTES_LEAST)
        if by < 0:
            self._ask_resume()

    def wait(self, holder: Holder) -> None:
        """Have `holder.memory_freed` called when there is memory for what it wants."""
        self._waiting[holder] = None
        self._ask_resume()

    def leave(self, holder: Holder) -> None:
        """Forget a holder that waits no longer."""
        if self._waiting.pop(holder, 0) is None:
            self._ask_resume()

    def _fits(self, size: int) -> bool:
        # One that is larger than the limit goes alone.
        return self.held + size <= self._limit or self.held <= 0

    def _ask_resume(self) -> None:
        if self._waiting and not self._resume_asked:
            self._resume_asked = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_asked = False
        promised = 0  # to those who will say how much only when they are read
        while self._waiting:
            holder = next(iter(self._waiting))
            wanted = holder.bytes_wanted()
            if not self._fits(promised + wanted):
                return
            promised += 0 if wanted else STAGED_BYTES
            del self._waiting[holder]
            holder.memory_freed()
