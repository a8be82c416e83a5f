"""
What the broker asks of whoever embeds it, and what it offers to services that live on its log.

The broker never imports the framework: the schema registry is handed in as a `RecordValidator` and keeps its own
state through an `InternalLog`. Only `fluvial.node` knows both sides.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable


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


class Cause(StrEnum):
    """What kind of reason a record is refused for: the label `cause` of the metric `log_broker_records_refused`."""

    NO_KEY = "no_key"  # in a compacted topic, or where the contract says which field the key is
    NULL = "null"  # a key or value that its schema does not allow to be null
    FRAMING = "framing"  # no schema id before the data
    SCHEMA_ID = "schema_id"  # one that is not registered, or not for this topic
    PAYLOAD = "payload"  # the data do not decode under the schema
    TIMESTAMP = "timestamp"  # too old or too far ahead
    REGISTRY = "registry"  # the contract cannot be read


class Violation(NamedTuple):
    """Why a key or value breaks its contract; `field` is the path of the field that does, where there is one."""

    reason: str
    field: str = ""
    cause: Cause = Cause.PAYLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """
    What a topic asks of its keys or of its values.

    `level` is `id` (framed with a schema id of this topic's subject) or `payload` (the bytes also decode completely
    under that schema). `strategy` is the last part of the name of Confluent's class that says which subject that is.
    `takes_null` says that null means something else than an absent datum: it is a tombstone.
    """

    topic: str
    is_key: bool
    level: str
    strategy: str = "TopicNameStrategy"
    takes_null: bool = False


# Walks over the datum that begins at a position and returns where it ends. It may go on behind the end of the datum's
# own record, which the caller sees by the answer. Raises ValueError or LookupError where there is no such datum.
Skip = Callable[[bytes, int], int]


class RecordCheck(Protocol):
    """
    How one contract stands now. It is asked in the turn of the event loop in which it was got, or for a long batch in
    another thread while the loop goes on.
    """

    @property
    def accepted(self) -> Mapping[bytes, Skip | None]:
        """
        Beginnings (frames) of data that are known to be in order, to be looked up before `violation` is asked.

        Where there is a Skip the datum must also end where its record does.
        """
        ...

    @property
    def keyless(self) -> Violation | None:
        """Why a record with a null key may not enter by the contract of its value, None when it may."""
        ...

    def violation(self, datum: bytes | None) -> Violation | None:
        """Return why this key or value may not enter, None when it may."""
        ...


class RecordValidator(Protocol):
    """
    Says whether records may enter a topic. Called only for topics that ask for validation.

    Nothing of it may block: it runs on the broker's event loop. Only the checks of long batches run in another thread.
    """

    def check_of(self, contract: Contract) -> RecordCheck:
        """Return what to check the keys or values of a batch with."""
        ...


@runtime_checkable
class LearningValidator(RecordValidator, Protocol):
    """A validator whose knowledge may be a moment old: before it refuses for good, it is asked to learn."""

    def learn(self, then: Callable[[bool], None]) -> None:
        """Call `then` once all that the cluster knows by now is known here, with False when that cannot be had."""
        ...


@runtime_checkable
class KnowsOwners(Protocol):
    """A validator that knows whose a topic's records are."""

    def owner_of(self, topic: str) -> str | None:
        """Return the name of the user who owns the values of a topic, None where nobody does. It does not block."""
        ...
