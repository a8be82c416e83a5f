"""ElectLeaders: with one replica a partition's leader is always the preferred one."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

PREFERRED = 0
UNCLEAN = 1


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    kind = getattr(request, "election_type", PREFERRED)
    whole = ErrorCode.NONE if kind in {PREFERRED, UNCLEAN} else ErrorCode.INVALID_REQUEST
    results = []
    # Null asks for all partitions, and only those that an election was held for are answered then.
    for topic in request.topic_partitions or ():
        image = node.cluster.topics.get(topic.topic)
        count = 0 if image is None else len(image.partitions)
        answers = []
        for partition in topic.partitions:
            error, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
            if whole is not ErrorCode.NONE:
                error, message = whole, f"Unknown election type {kind}"
            elif not 0 <= partition < count:
                error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic.topic}-{partition}"
            answers.append({"partition_id": partition, "error_code": error, "error_message": message})
        results.append({"topic": topic.topic, "partition_result": answers})
    return {"error_code": whole, "replica_election_results": results}
