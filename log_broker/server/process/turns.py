"""Long work in the event loop: some of it at a time, so that other clients are answered in between."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class OneATurn:
    """Lets those who ask go on one after the other, each in another turn of the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def begin(self) -> None:
        """Return when it is one's turn."""
        async with self._lock:
            await asyncio.sleep(0)


async def in_turns(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """Yield the items, `size` at a time, each time in another turn of the event loop."""
    for at in range(0, len(items), size):
        if at:
            await asyncio.sleep(0)
        yield items[at : at + size]
