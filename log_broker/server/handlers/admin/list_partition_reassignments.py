"""ListPartitionReassignments: which partitions are on their way between brokers (KIP-455)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.reassignments import moves
from log_broker.errors import ErrorCode
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: Cluster, context: "RequestContext", request: Any) -> "Values":
    asked = None
    if request.topics is not None:
        asked = {(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
    found: dict[str, list[Values]] = {}
    for name, index, image in moves(node.cluster, None if asked is None else {name for name, _ in asked}):
        if asked is None or (name, index) in asked:
            found.setdefault(name, []).append(
                {
                    "partition_index": index,
                    "replicas": image.replicas,
                    "adding_replicas": image.adding,
                    "removing_replicas": image.removing,
                }
            )
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in found.items()],
    }
