"""WriteTxnMarkers: end transactions in partitions; from their coordinator, or by hand where one was left hanging."""

import asyncio
from typing import TYPE_CHECKING, Any

from log_broker.core.transaction import BUMPS_EPOCH_FROM
from log_broker.errors import ErrorCode
from log_broker.records.control import EndMarker
from log_broker.server.transaction_markers import write_marker

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return {"markers": [await _write(node, marker) for marker in request.markers]}


async def _write(node: "Node", asked: Any) -> "Values":
    places = [(topic.name, partition) for topic in asked.topics for partition in topic.partition_indexes]
    marker = EndMarker(asked.transaction_result, asked.coordinator_epoch)
    bumped = getattr(asked, "transaction_version", 0) >= BUMPS_EPOCH_FROM
    answers: dict[tuple[str, int], asyncio.Future[ErrorCode]] = {}
    for place in places:
        if place not in answers:
            producer = (asked.producer_id, asked.producer_epoch)
            answers[place] = write_marker(node, place, producer, marker, bumped=bumped)
    errors = {place: await answer for place, answer in answers.items()}
    return {
        "producer_id": asked.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition, "error_code": errors[topic.name, partition]}
                    for partition in topic.partition_indexes
                ],
            }
            for topic in asked.topics
        ],
    }
