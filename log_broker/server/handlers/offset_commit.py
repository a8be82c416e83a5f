"""OffsetCommit: remember how far a group has read."""

from typing import TYPE_CHECKING, Any

from log_broker.core.group_protocol import Commit, TopicPartition
from log_broker.core.group_records import CommittedOffset
from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

MEMBER_EPOCH_FROM = 9


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    refused: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now_ms = node.clock_ms()
    for topic in request.topics:
        image = node.cluster.topics.get(topic.name)
        for partition in topic.partitions:
            place = (topic.name, partition.partition_index)
            metadata = partition.committed_metadata or ""
            if image is None or not 0 <= partition.partition_index < len(image.partitions):
                refused[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > node.config.offset_metadata_max_bytes:
                refused[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offsets[place] = CommittedOffset(
                    offset=partition.committed_offset,
                    metadata=metadata,
                    leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                    timestamp_ms=now_ms,
                )
    error = await _commit(node, context, request, offsets)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": refused.get((topic.name, partition.partition_index), error),
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _commit(
    node: "Node", context: "RequestContext", request: Any, offsets: dict[TopicPartition, CommittedOffset]
) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return error
    generation = request.generation_id_or_member_epoch
    answer = node.groups.ask(
        request.group_id,
        lambda token: Commit(
            token=token,
            member_id=request.member_id,
            generation=generation,
            instance_id=getattr(request, "group_instance_id", None),
            offsets=offsets,
            knows_epochs=context.version >= MEMBER_EPOCH_FROM,
        ),
        create=generation < 0,
    )
    if answer is None:
        return ErrorCode.GROUP_ID_NOT_FOUND if context.version >= MEMBER_EPOCH_FROM else ErrorCode.ILLEGAL_GENERATION
    result: ErrorCode = await answer
    return result
