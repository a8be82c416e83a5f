"""The events, effects and answers of the transactions of one transactional id."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from log_broker.core.transactions.records import NO_EPOCH, NO_ID, StoredTransaction, TopicPartition
from log_broker.errors import ErrorCode

# In every event: `token` comes back in the Reply that answers it.


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """
    A producer begins, or goes on after an error, with the `expected` (producer id, epoch) that it had.

    `fresh_id` is taken where the epochs of the id are used up (`Transaction.wants_fresh_id`).
    """

    token: Any
    timeout_ms: int
    expected: tuple[int, int] | None = None
    fresh_id: int = NO_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """The producer's transaction, begun with this if need be, is about to write to partitions."""

    token: Any
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """
    The producer commits or aborts. With `client_version` 2 its epoch is raised, and the answer says to what (KIP-890).
    """

    token: Any
    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: int = 0
    fresh_id: int = NO_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """Every partition of the prepared transaction has its marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """The record of the last Persist is durable, or could not be made so."""

    error: ErrorCode = ErrorCode.NONE


Event = InitProducer | AddPartitions | End | MarkersWritten | Persisted


class Answer(NamedTuple):
    """What the producer is told; an id and an epoch where it asked for them."""

    error: ErrorCode
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH


class Reply(NamedTuple):
    """Answer the event that brought `token`."""

    token: Any
    answer: Answer


class Persist(NamedTuple):
    """Append the transaction as it is to be, None for a tombstone, then report with Persisted."""

    record: StoredTransaction | None


class WriteMarkers(NamedTuple):
    """Write the marker to each partition, for as long as it takes, then report with MarkersWritten."""

    transaction: StoredTransaction


Effect = Reply | Persist | WriteMarkers
