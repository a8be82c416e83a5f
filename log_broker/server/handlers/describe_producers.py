"""DescribeProducers: who writes to partitions, and whose transaction is open there."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition(node, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in request.topics
        ]
    }


def _partition(node: "Node", topic: str, index: int) -> "Values":
    runtime = node.logs.get(
        topic, index
    )  # any replica knows, and `kafka-transactions.sh find-hanging` asks each broker
    if runtime is None:
        return {"partition_index": index, "error_code": node.absence_of(topic, index), "active_producers": []}
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.batches[-1].last_sequence if entry.batches else -1,
                "last_timestamp": entry.timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.first_offset,
            }
            for producer_id, entry in runtime.producers.items()
        ],
    }
