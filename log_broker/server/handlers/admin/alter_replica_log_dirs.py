"""AlterReplicaLogDirs: this broker has one log directory, so a replica can only stay where it is."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.errors import ErrorCode
from log_broker.server.partitions.ports import Partitions
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


class _Host(Cluster, Partitions, Protocol):
    """What is asked of the node here."""


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    own = str(node.static_config.data_dir.absolute())
    results: dict[str, list[Values]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            answers = results.setdefault(topic.name, [])
            for partition in topic.partitions:
                if directory.path.rstrip("/") != own:
                    error = ErrorCode.LOG_DIR_NOT_FOUND
                elif node.logs.get(topic.name, partition) is None:
                    error = node.absence_of(topic.name, partition)
                else:
                    error = ErrorCode.NONE
                answers.append({"partition_index": partition, "error_code": error})
    return {"results": [{"topic_name": name, "partitions": answers} for name, answers in results.items()]}
