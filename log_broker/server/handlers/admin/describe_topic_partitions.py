"""DescribeTopicPartitions (KIP-966): Metadata of topics in pages, for topics of very many partitions."""

import asyncio
from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.controller import check_topic_name
from log_broker.core.cluster.image import NO_LEADER, PartitionImage, TopicImage
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.handlers.admin.metadata import TOPIC_OPERATIONS, topic_values_in_turns
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

PARTITIONS_MAX = 2000  # max.request.partition.size.limit
PARTITIONS_AT_ONCE_MAX = 500  # in one turn of the event loop


async def handle(node: Cluster, context: "RequestContext", request: Any) -> "Values":
    first, start = ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
    if start < 0:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "The cursor's partition is negative.")
    asked = {topic.name for topic in request.topics} or node.cluster.topics.keys()
    names = sorted(name for name in asked if name >= first)
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    topics: list[Values] = []
    cursor = None
    left = PARTITIONS_AT_ONCE_MAX
    for name in names:
        begin = start if name == first else 0
        image = node.cluster.topics.get(name)
        if room == 0:
            cursor = {"topic_name": name, "partition_index": begin}
            break
        left -= 1
        if left <= 0:
            await asyncio.sleep(0)
            left = PARTITIONS_AT_ONCE_MAX
        if image is None:
            topics.append(_absent(name))
            continue
        end = min(len(image.partitions), begin + room)
        topics.append(await _page(node, image, range(begin, end)))
        left -= max(0, end - begin)
        room -= max(0, end - begin)
        if end < len(image.partitions):
            cursor = {"topic_name": name, "partition_index": end}
            break
    return {"topics": topics, "next_cursor": cursor}


async def _page(node: Cluster, image: TopicImage, indexes: range) -> "Values":
    values = await topic_values_in_turns(node, image, TOPIC_OPERATIONS, PARTITIONS_AT_ONCE_MAX, indexes)
    partitions = zip(values["partitions"], image.partitions[indexes.start : indexes.stop], strict=True)
    return {**values, "partitions": [{**partition, **_eligible(found)} for partition, found in partitions]}


def _eligible(partition: PartitionImage) -> "Values":
    last_known = partition.last_known_leader
    return {
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": () if last_known == NO_LEADER else (last_known,),
    }


def _absent(name: str) -> "Values":
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except BrokerError as refused:
        error = refused.code
    return {"error_code": error, "name": name, "topic_id": None, "partitions": ()}
