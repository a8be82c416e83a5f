"""
Appends a batch of a transaction, once its coordinator has said that the partition belongs to it (KIP-890).

A partition that already holds records of the transaction takes more without asking. For the others the coordinator is
asked; from Produce version 12 on, it takes them into the transaction by that.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from log_broker.core.partition.protocol import AppendResult
from log_broker.core.partition.transactions import PartitionTransactions
from log_broker.core.transactions.records import TopicPartition
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import HEADER_BYTES, MAGIC, MAGIC_OFFSET, TRANSACTIONAL, read_header
from log_broker.server.coordinators.partitions import CoordinatorHost, join_transaction
from log_broker.server.partitions.long_checks import Done
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Process

ABORTABLE_FROM = 11
ADDS_PARTITIONS_FROM = 12

# The transaction's coordinator cannot say now; an error that every producer takes for a reason to repeat.
_TO_REPEAT = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


def is_transactional(records: memoryview) -> bool:
    """Whether this is a batch that says that it is part of a transaction; one that is no batch is not."""
    return (
        len(records) >= HEADER_BYTES
        and records[MAGIC_OFFSET] == MAGIC
        and bool(read_header(records).attributes & TRANSACTIONAL)
    )


class ProducedBatch(NamedTuple):
    """One partition's part of a Produce request."""

    runtime: PartitionRuntime
    records: memoryview
    acks: int
    done: Done
    put_aside: Callable[..., None] | None = None  # how a topic with a quarantine is appended to

    @property
    def place(self) -> TopicPartition:
        return self.runtime.topic, self.runtime.partition

    def append(self, transactional_id: str) -> None:
        if self.runtime.is_quarantine:
            self.runtime.own_appends.quarantined(self.records, self.done)
        elif self.runtime.quarantines and self.put_aside is not None:
            self.put_aside(
                self.runtime, self.records, acks=self.acks, done=self.done, transactional_id=transactional_id
            )
        else:
            self.runtime.append(self.records, acks=self.acks, done=self.done)


class ProduceHost(CoordinatorHost, Process, Protocol):
    """What appending in a transaction asks of the node."""


def append_in_transaction(
    node: ProduceHost, transactional_id: str, version: int, batches: Sequence[ProducedBatch]
) -> None:
    """Append each batch, at once or after the coordinator has answered; its `done` gets the outcome."""
    asked: dict[tuple[int, int], list[_Waiting]] = {}
    for batch in batches:
        header = read_header(batch.records)
        transactions = batch.runtime.transactions
        producer = (header.producer_id, header.producer_epoch)
        is_open = transactions.is_open(*producer) and not transactions.is_awaited(header.producer_id)
        if is_open or not batch.runtime.is_leader:  # who does not lead refuses it at once
            batch.append(transactional_id)
        else:
            transactions.expect(*producer, header.base_sequence)
            asked.setdefault(producer, []).append(_Waiting(batch, transactions))
    for producer, waiting in asked.items():
        node.run(_ask_and_append(node, transactional_id, version, producer, waiting))


class _Waiting(NamedTuple):
    """A batch that waits for the coordinator, and who was told that it does: a log that is cut goes on with others."""

    batch: ProducedBatch
    transactions: PartitionTransactions


async def _ask_and_append(
    node: ProduceHost, transactional_id: str, version: int, producer: tuple[int, int], waiting: Sequence[_Waiting]
) -> None:
    add = version >= ADDS_PARTITIONS_FROM
    batches = [each.batch for each in waiting]
    places = [batch.place for batch in batches]
    try:
        errors = await join_transaction(node, transactional_id, producer, places, add=add)
    except BrokerError as failure:
        errors = dict.fromkeys(places, failure.code)
    finally:
        for each in waiting:
            each.transactions.answered(producer[0])
    for batch in batches:
        error = _to_producer(errors[batch.place], version)
        if error is ErrorCode.NONE:
            batch.runtime.transactions.allow(*producer)
            batch.append(transactional_id)
        else:
            reason = f"the partition is not in an open transaction of {transactional_id}"
            batch.done(AppendResult(error, message=reason))


def _to_producer(error: ErrorCode, version: int) -> ErrorCode:
    """Say what a producer of this version is to make of the coordinator's answer."""
    match error:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < ADDS_PARTITIONS_FROM:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _ if error in _TO_REPEAT:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return error
