"""The log of a registry, in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from log_broker.interfaces import InternalRecord


class MemoryLog:
    """An `InternalLog` of a list. `fail_next` makes the next append fail, after writing when it says so."""

    def __init__(self) -> None:
        self.records: list[InternalRecord] = []
        self.fail_next: str | None = None

    async def lead(self) -> int:
        return 0

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None = None) -> int:
        await asyncio.sleep(0)
        failing, self.fail_next = self.fail_next, None
        if failing == "before writing":
            raise OSError("disk full")
        first = self.next_offset
        for index, (key, value) in enumerate(records):
            self.records.append(InternalRecord(offset=first + index, timestamp=0, key=key, value=value))
        if failing == "after writing":
            raise OSError("connection lost")
        return first

    @property
    def next_offset(self) -> int:
        return self.records[-1].offset + 1 if self.records else 0

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        for each in [each for each in self.records if each.offset >= from_offset]:
            yield each

    def compact(self) -> None:
        """Keep the last record of each key and drop tombstones, as the broker's cleaner does in the end."""
        last = {each.key: each for each in self.records}
        kept = [each for each in last.values() if each.value is not None]
        newest = self.records[-1] if self.records else None
        self.records = sorted({*kept, *([newest] if newest else [])}, key=lambda each: each.offset)
