"""
Appends a batch of a transaction, once its coordinator has said that the partition belongs to it (KIP-890).

A partition that already holds records of the transaction takes more without asking. For the others the coordinator is
asked; from Produce version 12 on, it takes them into the transaction by that.
"""

from typing import TYPE_CHECKING, NamedTuple

from log_broker.core.partition import AppendResult
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import HEADER_BYTES, MAGIC, MAGIC_OFFSET, TRANSACTIONAL, BatchHeader, read_header
from log_broker.server.partition import Done, PartitionRuntime

if TYPE_CHECKING:
    from log_broker.server.node import Node

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

    def append(self) -> None:
        self.runtime.append(self.records, acks=self.acks, done=self.done)


def append_in_transaction(node: "Node", transactional_id: str, version: int, batch: ProducedBatch) -> None:
    """Append at once or after the coordinator has answered; `done` gets the outcome."""
    header = read_header(batch.records)
    transactions = batch.runtime.transactions
    if transactions.is_open(header.producer_id, header.producer_epoch) and not transactions.is_awaited(
        header.producer_id
    ):
        batch.append()
        return
    transactions.expect(header.producer_id, header.producer_epoch, header.base_sequence)
    node.run(_ask_and_append(node, transactional_id, version, header, batch))


async def _ask_and_append(
    node: "Node", transactional_id: str, version: int, header: BatchHeader, batch: ProducedBatch
) -> None:
    runtime = batch.runtime
    producer = (header.producer_id, header.producer_epoch)
    try:
        error = await node.join_transaction(
            transactional_id, producer, (runtime.topic, runtime.partition), add=version >= ADDS_PARTITIONS_FROM
        )
    except BrokerError as failure:
        error = failure.code
    finally:
        runtime.transactions.answered(header.producer_id)
    match error:
        case ErrorCode.NONE:
            runtime.transactions.allow(*producer)
            batch.append()
            return
        case ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < ABORTABLE_FROM:
            error = ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < ADDS_PARTITIONS_FROM:
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        case _ if error in _TO_REPEAT:
            error = ErrorCode.NOT_ENOUGH_REPLICAS
    batch.done(AppendResult(error, message=f"the partition is not in an open transaction of {transactional_id}"))
