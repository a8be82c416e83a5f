"""DeleteRecords: give up the front of partitions."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partitions.ports import Partitions

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: Partitions, context: "RequestContext", request: Any) -> "Values":
    """Answer once a crash does not bring the records back."""
    topics = [
        {"name": topic.name, "partitions": [_partition(node, topic.name, wanted) for wanted in topic.partitions]}
        for topic in request.topics
    ]
    try:
        await node.logs.checkpoints.keep_log_starts()
    except OSError:
        for topic in topics:
            for answer in topic["partitions"]:
                answer["error_code"] = answer["error_code"] or ErrorCode.KAFKA_STORAGE_ERROR
    return {"topics": topics}


def _partition(node: Partitions, topic: str, wanted: Any) -> "Values":
    runtime = node.logs.led(topic, wanted.partition_index)
    low_watermark = -1
    error = ErrorCode.NONE
    if runtime is None:
        is_metadata = topic == METADATA_TOPIC
        error = ErrorCode.INVALID_TOPIC_EXCEPTION if is_metadata else node.absence_of(topic, wanted.partition_index)
    elif runtime.is_internal:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif runtime.config.cleanup_policy == {"compact"}:
        error = ErrorCode.POLICY_VIOLATION
    else:
        try:
            low_watermark = runtime.keeping.delete_records(wanted.offset)
        except BrokerError as failure:
            error = failure.code
    return {"partition_index": wanted.partition_index, "low_watermark": low_watermark, "error_code": error}
