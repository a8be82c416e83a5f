"""AlterPartitionReassignments: begin, change or cancel the move of partitions to other brokers (KIP-455)."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.server.quorum.controller import active_controller

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    wanted = [
        (topic.name, partition.partition_index, partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    outcomes = iter(await active_controller(node).reassign(wanted, may_change_factor=may_change_factor))
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": outcome.error,
                        "error_message": outcome.message,
                    }
                    for partition, outcome in zip(topic.partitions, outcomes, strict=False)
                ],
            }
            for topic in request.topics
        ],
    }
