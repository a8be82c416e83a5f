"""ElectLeaders: with one replica a partition's leader is always the preferred one."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    results = []
    for topic in request.topic_partitions or ():
        image = node.cluster.topics.get(topic.topic)
        count = 0 if image is None else len(image.partitions)
        results.append(
            {
                "topic": topic.topic,
                "partition_result": [
                    {
                        "partition_id": partition,
                        "error_code": ErrorCode.ELECTION_NOT_NEEDED
                        if 0 <= partition < count
                        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        "error_message": None,
                    }
                    for partition in topic.partitions
                ],
            }
        )
    return {"error_code": ErrorCode.NONE, "replica_election_results": results}
