"""OffsetForLeaderEpoch: where an epoch ended, so that a reader finds out whether its log has diverged (KIP-320)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.net.rights import Guarded, only
from log_broker.server.partitions.ports import Partitions

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: Partitions, context: "RequestContext", request: Any) -> "Values":
    """Answer one OffsetForLeaderEpoch request."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_partition(node, topic.topic, wanted) for wanted in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the topics that may not be described, for whoever is no broker."""
    if rights.may_cluster(Operation.CLUSTER_ACTION):
        return guarded
    api = context.header.api_key, context.version
    return only(
        api,
        guarded,
        "topics",
        lambda topic: rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic),
        ResourceType.TOPIC,
    )


def _partition(node: Partitions, topic: str, wanted: Any) -> "Values":
    runtime = node.logs.led(topic, wanted.partition)
    error = (
        node.absence_of(topic, wanted.partition)
        if runtime is None
        else runtime.check_leader_epoch(wanted.current_leader_epoch)
    )
    epoch, end_offset = -1, -1
    if runtime is not None and error is ErrorCode.NONE:
        epoch, end_offset = runtime.epoch_end_offset(wanted.leader_epoch)
    return {"error_code": error, "partition": wanted.partition, "leader_epoch": epoch, "end_offset": end_offset}
