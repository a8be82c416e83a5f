"""WriteTxnMarkers: end transactions in partitions; from their coordinator, or by hand where one was left hanging."""

from typing import TYPE_CHECKING, Any

from log_broker.core.transaction import BUMPS_EPOCH_FROM
from log_broker.core.transaction_records import TopicPartition
from log_broker.records.control import EndMarker
from log_broker.server.transaction_markers import Answer, Ending, write_marker

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    # All are on their way before the first is waited for: they share the writes of their partitions.
    begun = [(marker, _begin(node, marker)) for marker in request.markers]
    return {"markers": [await _outcome(marker, answers) for marker, answers in begun]}


def _begin(node: "Node", asked: Any) -> dict[TopicPartition, Answer]:
    ending = Ending(
        (asked.producer_id, asked.producer_epoch),
        EndMarker(asked.transaction_result, asked.coordinator_epoch),
        getattr(asked, "transaction_version", 0) >= BUMPS_EPOCH_FROM,
    )
    places = dict.fromkeys((topic.name, partition) for topic in asked.topics for partition in topic.partition_indexes)
    return {place: write_marker(node, place, ending) for place in places}


async def _outcome(asked: Any, answers: dict[TopicPartition, Answer]) -> "Values":
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
