"""DescribeTopicPartitions (KIP-966): Metadata of topics in pages, for topics of very many partitions."""

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.controller import check_topic_name
from log_broker.core.cluster.image import NO_LEADER, PartitionImage, TopicImage
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.handlers.admin.metadata import TOPIC_OPERATIONS, topic_values_in_turns
from log_broker.server.net.rights import Guarded, only, then
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

PARTITIONS_MAX = 2000  # max.request.partition.size.limit
PARTITIONS_AT_ONCE_MAX = 500  # in one turn of the event loop


async def handle(node: Cluster, context: "RequestContext", request: Any) -> "Values":
    """Answer one DescribeTopicPartitions request."""
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


def guard(node: Cluster, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the topics that may not be described: those that were named are refused, others not mentioned."""
    request = guarded.request
    may = partial(rights.may, Operation.DESCRIBE, ResourceType.TOPIC)
    if request.topics:
        api = context.header.api_key, context.version
        guarded = only(api, guarded, "topics", lambda topic: may(topic.name), ResourceType.TOPIC)
    else:
        named = tuple(SimpleNamespace(name=name) for name in node.cluster.topics if may(name))
        guarded = Guarded(replace(request, topics=named))
    # To ask about no topic is to ask about all.
    finish = partial(_with_operations, rights) if guarded.request.topics else _nothing
    return guarded._replace(finish=then(finish, guarded.finish))


def _nothing(answer: "Values") -> "Values":
    return {**answer, "topics": [], "next_cursor": None}


def _with_operations(rights: Rights, answer: "Values") -> "Values":
    topics = [
        {**topic, "topic_authorized_operations": rights.operations(ResourceType.TOPIC, topic["name"])}
        for topic in answer["topics"]
    ]
    return {**answer, "topics": topics}


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
