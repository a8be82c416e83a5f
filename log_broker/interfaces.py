"""
What the broker asks of whoever embeds it, and what it offers to services that live on its log.

The broker never imports the framework: the schema registry is handed in as a `RecordValidator` and keeps its own
state through an `InternalLog`. Only `fluvial.node` knows both sides.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalRecord:
    """One record of an internal topic. `value` is None for a tombstone; `timestamp` is in ms since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class InternalLog(Protocol):
    """
    One single-partition compacted topic, as its owning service sees it.

    It does not promise that two writers are told apart: the one service of the partition's leader writes.
    """

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        """Append (key, value) pairs as one batch; return the first offset once it is as durable as the topic asks."""
        ...

    def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """Yield the records from `from_offset` up to the high watermark at the time of the call, then stop."""
        ...


class RecordValidator(Protocol):
    """Says whether records may enter a topic. Called only for topics that ask for validation."""

    def refuse_reason(self, topic: str, *, is_key: bool, level: str, payload: bytes | memoryview | None) -> str | None:
        """
        Return why this key or value may not enter `topic`, or None when it may.

        `level` is `id` (framed with a schema id that is registered for this topic's subject) or `payload` (the bytes
        also decode completely under that schema). Must not block: it runs on the broker's event loop.
        """
        ...
