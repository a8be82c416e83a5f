"""DescribeProducers: who writes to partitions, and whose transaction is open there."""

import asyncio
from typing import TYPE_CHECKING, Any

from log_broker.core.partition.producers import ProducerEntry
from log_broker.errors import ErrorCode
from log_broker.server.partitions.ports import Partitions
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

PRODUCERS_AT_ONCE_MAX = 5_000  # in one turn of the event loop


async def handle(node: Partitions, context: "RequestContext", request: Any) -> "Values":
    return {
        "topics": [
            {
                "name": topic.name,
                # A partition that is named again is answered once: it may have a hundred thousand producers.
                "partitions": [await _partition(node, topic.name, at) for at in dict.fromkeys(topic.partition_indexes)],
            }
            for topic in request.topics
        ]
    }


async def _partition(node: Partitions, topic: str, index: int) -> "Values":
    runtime = node.logs.get(
        topic, index
    )  # any replica knows, and `kafka-transactions.sh find-hanging` asks each broker
    if runtime is None:
        return {"partition_index": index, "error_code": node.absence_of(topic, index), "active_producers": []}
    await asyncio.sleep(0)
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "active_producers": [
            _producer(producer_id, entry)
            async for some in in_turns(list(runtime.producers.items()), PRODUCERS_AT_ONCE_MAX)
            for producer_id, entry in some
        ],
    }


def _producer(producer_id: int, entry: ProducerEntry) -> "Values":
    return {
        "producer_id": producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.batches[-1].last_sequence if entry.batches else -1,
        "last_timestamp": entry.timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.first_offset,
    }
