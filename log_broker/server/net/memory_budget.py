"""
One bound on the bytes of requests and answers that all connections of a node hold together (queued.max.request.bytes).

A connection that would go beyond it is not refused: it is not read from until others have given enough back, first come
first served. What counts is what is held and not what was announced: a large request is counted as its memory grows,
before it does. So that requests that have begun never stop each other, a request grows only where what the others lack
would still fit, each of them by itself; where it would not, one request at a time may take all that it lacks.

The first bytes of each connection are free, so that what ordinary requests take costs no bookkeeping and no one who
only waits (a long poll, a group member) keeps others out: the bound of a node is the limit and that share for each.
"""

import asyncio
from typing import Protocol

from log_broker.wire.framing import STAGING_BYTES

FREE_BYTES = 64 * 1024
ANSWER_BYTES_LEAST = 64 * 1024
CONGESTED_RETRY_SECONDS = 0.05  # after which it is looked again whether there is room for an answer


class Holder(Protocol):
    """A connection that waits for memory."""

    def bytes_wanted(self) -> int:
        """Bytes that must fit before it goes on, and that it will count then; 0 if it does not know yet."""
        ...

    def memory_freed(self) -> None: ...


class Sender(Protocol):
    """A connection that sends answers."""

    @property
    def is_sending(self) -> bool: ...


class MemoryBudget:
    """
    What is held and who waits; everything in the event loop's thread.

    Who does not know how much comes next may bring a first piece of a request of `request_bytes_max`, and is read from
    only while such a request would fit.
    """

    __slots__ = (
        "_answering",
        "_answers",
        "_finishing",
        "_lacking",
        "_limit",
        "_loop",
        "_request_bytes_max",
        "_resume_asked",
        "_sharing",
        "_waiting",
        "answer_bytes_max",
        "held",
        "is_full",
        "is_reserved",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, *, request_bytes_max: int = 0) -> None:
        self._loop = loop
        self._limit = limit
        self._request_bytes_max = request_bytes_max
        self._waiting: dict[Holder, int] = {}  # who wants some bytes, and how many it lacks until its request is whole
        self._sharing: dict[Holder, None] = {}  # who waits to go beyond its share by it does not know how much
        self._answers: dict[Holder, None] = {}  # who waits until an answer may be made for it
        self._resume_asked = False
        self._lacking: dict[Holder, int] = {}  # of requests that hold memory and are not complete
        self._finishing: Holder | None = None  # the one of them that may take what the others have left free
        self._answering: Sender | None = None
        self.held = 0
        # Looked at for every request, so they are kept and not worked out: whether all is taken, and whether what is
        # left is for requests that have begun.
        self.is_full = False
        self.is_reserved = False
        # An answer may take half of what is left: many large ones at once become smaller.
        self.answer_bytes_max = 0
        self.change(0)

    def resize(self, limit: int, *, request_bytes_max: int) -> None:
        """Go by other bounds from now on."""
        self._limit = limit
        self._request_bytes_max = request_bytes_max
        self.change(0)
        self._ask_resume()

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def waiting(self) -> int:
        """How many connections are not read from for want of memory."""
        return len(self._waiting) + len(self._sharing) + len(self._answers)

    def admits(self, size: int, holder: Holder | None = None, lacking: int = 0) -> bool:
        """
        Whether `size` bytes more fit, the next of `lacking` that a request will take until it is complete.

        Not for one that stands in the queue; others may have come first.
        """
        may_pass = holder is not None and holder is self._finishing
        return (may_pass or not self._waiting) and self._fits(size, holder, lacking)

    def lacks(self, holder: Holder, size: int) -> None:
        """Note how many bytes a request that holds memory will still take, 0 if there is none or it needs no more."""
        if size:
            self._lacking[holder] = size
            return
        self._lacking.pop(holder, None)
        if holder is self._finishing:
            self._finishing = None
        self._ask_resume()

    def change(self, by: int) -> None:
        """Count bytes that are held from now on, or with a negative number no longer are."""
        self.held += by
        left = self._limit - self.held
        self.answer_bytes_max = max(left // 2, ANSWER_BYTES_LEAST)
        left -= min(STAGING_BYTES, self._limit // 4)  # which a connection may bring before it is counted
        self.is_full = left < 0
        self.is_reserved = left < self._request_bytes_max
        if by < 0:
            self._ask_resume()

    def takes_turn(self, sender: Sender) -> bool:
        """Whether a connection may make one answer although all is taken: one after the other, as each is sent."""
        if self._answering is not None and self._answering is not sender and self._answering.is_sending:
            return False
        self._answering = sender
        return True

    def wait(self, holder: Holder, lacking: int = 0) -> None:
        """Have `holder.memory_freed` called when there is memory for what it wants; see `admits`."""
        self._answers.pop(holder, None)
        if holder.bytes_wanted():
            self._sharing.pop(holder, None)
            self._waiting[holder] = lacking
        elif holder not in self._waiting:
            self._sharing[holder] = None
        self._ask_resume()

    def wait_for_answer(self, holder: Holder) -> None:
        """Have `holder.memory_freed` called when an answer may be made for it."""
        self.leave(holder)
        self._answers[holder] = None
        self._ask_resume()

    def leave(self, holder: Holder) -> None:
        """Forget a holder that waits no longer."""
        self._sharing.pop(holder, None)
        self._answers.pop(holder, None)
        if self._waiting.pop(holder, None) is not None:
            self._ask_resume()

    def _fits(self, size: int, holder: Holder | None, lacking: int) -> bool:
        if self.held <= 0:
            return True  # one that is larger than the limit goes alone
        left = self._limit - self.held
        if holder is not None and holder is self._finishing:
            return size <= left
        others = max((rest for other, rest in self._lacking.items() if other is not holder), default=0)
        if size + max(others, lacking - size) <= left:
            return True
        if not lacking or lacking > left or self._finishing is not None:
            return False
        self._finishing = holder
        return True

    def _ask_resume(self) -> None:
        if (self._waiting or self._sharing or self._answers) and not self._resume_asked:
            self._resume_asked = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_asked = False
        while (holder := self._next()) is not None:
            del self._waiting[holder]
            holder.memory_freed()
        while self._answers and not self.is_full:
            holder = next(iter(self._answers))
            del self._answers[holder]
            holder.memory_freed()
        promised = 0  # to those who will say how much only when they are read
        while self._sharing and not self.is_reserved and promised <= self._limit - self.held - self._request_bytes_max:
            promised += STAGING_BYTES
            holder = next(iter(self._sharing))
            del self._sharing[holder]
            holder.memory_freed()

    def _next(self) -> Holder | None:
        """Return the first that may go on. Who holds memory comes before who holds none, who might need all of it."""
        if not self._waiting:
            return None
        finishing = self._finishing if self._finishing in self._waiting else None
        holding = next((holder for holder in self._waiting if holder in self._lacking), None)
        for holder in (finishing or next(iter(self._waiting)), holding):
            if holder is not None and self._fits(holder.bytes_wanted(), holder, self._waiting[holder]):
                return holder
        return None
