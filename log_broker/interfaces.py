"""
What the broker asks of whoever embeds it, and what it offers to services that live on its log.

The broker never imports the framework: the schema registry is handed in as a `RecordValidator` and keeps its own
state through an `InternalLog`. Only `fluvial.node` knows both sides.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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

    Only the service on the partition's leader writes, and what it has decided in one term is not written in another.
    """

    async def lead(self) -> int:
        """
        Return the term in which this service may write, once all that was answered in earlier ones can be read here.

        Raises BrokerError, NOT_LEADER_OR_FOLLOWER where another node leads.
        """
        ...

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None = None) -> int:
        """
        Append (key, value) pairs as one batch; return the first offset once it is as durable as the topic asks.

        Raises BrokerError, NOT_LEADER_OR_FOLLOWER when `term` is over.
        """
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


@runtime_checkable
class LearningValidator(RecordValidator, Protocol):
    """A validator whose knowledge may be a moment old: before it refuses for good, it is asked to learn."""

    def learn(self, then: Callable[[bool], None]) -> None:
        """Call `then` once all that the cluster knows by now is known here, with False when that cannot be had."""
        ...
