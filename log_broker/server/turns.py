"""Long lists in the event loop: some of them at a time, so that other clients are answered in between."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def in_turns(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """Yield the items, `size` at a time, each time in another turn of the event loop."""
    for at in range(0, len(items), size):
        if at:
            await asyncio.sleep(0)
        yield items[at : at + size]
