"""WriteTxnMarkers: end transactions in partitions; from their coordinator, or by hand where one was left hanging."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.image import TRANSACTIONS_TOPIC
from log_broker.core.partition.producers import NO_COORDINATOR_EPOCH
from log_broker.core.transactions.records import TopicPartition
from log_broker.core.transactions.transaction import BUMPS_EPOCH_FROM
from log_broker.errors import ErrorCode
from log_broker.records.control import EndMarker
from log_broker.server.coordinators.markers import Answer, Ending, MarkerHost, write_marker
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

AT_ONCE_MAX = 100  # markers, or partitions of one, in a turn of the event loop


async def handle(node: MarkerHost, context: "RequestContext", request: Any) -> "Values":
    """Write every marker of the request, and answer when the last is written."""
    # All are on their way before the first is waited for: they share the writes of their partitions.
    epoch_max = coordinator_epoch_max(node)
    begun: list[tuple[Any, dict[TopicPartition, Answer]]] = []
    async for markers in in_turns(request.markers, AT_ONCE_MAX):
        begun += [(marker, await _begin(node, marker, epoch_max)) for marker in markers]
    outcomes: list[Values] = []
    async for some in in_turns(begun, AT_ONCE_MAX):
        outcomes += [await _outcome(marker, answers) for marker, answers in some]
    return {"markers": outcomes}


def coordinator_epoch_max(node: MarkerHost) -> int:
    """
    Return the highest epoch that a coordinator can have: each has that of its leadership.

    A partition remembers the epoch and refuses lower ones, so one that is made up would fence every coordinator there
    is. One that this node has not heard of yet will ask again.
    """
    topic = node.cluster.topics.get(TRANSACTIONS_TOPIC)
    return max((partition.leader_epoch for partition in topic.partitions), default=-1) if topic is not None else -1


async def _begin(node: MarkerHost, asked: Any, epoch_max: int) -> dict[TopicPartition, Answer]:
    places = dict.fromkeys((topic.name, partition) for topic in asked.topics for partition in topic.partition_indexes)
    is_producer = 0 <= asked.producer_id < node.cluster.next_producer_id and asked.producer_epoch >= 0
    if not is_producer or not NO_COORDINATOR_EPOCH <= asked.coordinator_epoch <= epoch_max:
        refused: Answer = node.loop.create_future()
        refused.set_result(ErrorCode.INVALID_REQUEST)
        return dict.fromkeys(places, refused)
    ending = Ending(
        (asked.producer_id, asked.producer_epoch),
        EndMarker(asked.transaction_result, asked.coordinator_epoch),
        getattr(asked, "transaction_version", 0) >= BUMPS_EPOCH_FROM,
    )
    answers: dict[TopicPartition, Answer] = {}
    async for some in in_turns(list(places), AT_ONCE_MAX):
        answers.update({place: write_marker(node, place, ending) for place in some})
    return answers


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
