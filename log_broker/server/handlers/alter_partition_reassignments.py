"""AlterPartitionReassignments: partitions do not move between brokers yet; staying where it is is granted."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster import ClusterImage
from log_broker.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return {
        "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "responses": [
            {
                "name": topic.name,
                "partitions": [_answer(node.cluster, topic.name, wanted) for wanted in topic.partitions],
            }
            for topic in request.topics
        ],
    }


def _answer(image: ClusterImage, topic: str, wanted: Any) -> "Values":
    answer = {"partition_index": wanted.partition_index, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        _check(image, topic, wanted.partition_index, wanted.replicas)
    except BrokerError as error:
        answer.update(error_code=error.code, error_message=str(error))
    return answer


def _check(image: ClusterImage, topic: str, index: int, replicas: "tuple[int, ...] | None") -> None:
    found = image.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}.")
    if replicas is None:
        raise BrokerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if not replicas or len(set(replicas)) < len(replicas):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The replicas {list(replicas)} are none or name a broker twice."
        )
    unknown = [node_id for node_id in replicas if node_id not in image.brokers]
    if unknown:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment names unknown brokers: {unknown}."
        )
    if tuple(replicas) != found.partitions[index].replicas:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Partitions do not move between brokers yet: {topic}-{index} stays on"
            f" {list(found.partitions[index].replicas)}.",
        )
