"""
Metadata: the brokers, the controller, and the topics with who leads each partition.

Asking for a topic that is not there makes it, if client and broker agree to that. Encoding a thousand partitions takes
milliseconds and many clients ask the same, so encoded answers are kept until the image changes.
"""

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from log_broker.core.cluster import INTERNAL_TOPICS, NO_LEADER, OFFSETS_TOPIC, TopicImage
from log_broker.core.controller import CreateTopic, check_topic_name
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.dispatch import room_for_answer
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import write_response

if TYPE_CHECKING:
    from log_broker.server.dispatch import Encoded, RequestContext, Values
    from log_broker.server.node import Node

ALL_TOPICS_IS_EMPTY_BEFORE = 1  # v0 has no null array
AUTHORIZED_NOT_ASKED = -(2**31)
# One bit for each operation, by Kafka's AclOperation codes; without ACLs everyone may do everything.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values | Encoded | Awaitable[Values | Encoded]":
    """Answer one Metadata request."""
    names = _names(node, context.version, request)
    if names is not None and getattr(request, "allow_auto_topic_creation", True):
        missing = [name for name in names if isinstance(name, str) and name not in node.cluster.topics]
        if missing and node.config.auto_create_topics_enable:
            return _create_and_answer(node, context, request, names, missing)
    return _answer(node, context, request, names, {})


def _names(node: "Node", version: int, request: Any) -> "tuple[str | UUID, ...] | None":
    """Return the topics that are asked for, those that are named by an unknown id as that; None for all."""
    if request.topics is None or (version < ALL_TOPICS_IS_EMPTY_BEFORE and not request.topics):
        return None
    names: list[str | UUID] = []
    for topic in request.topics:
        topic_id = getattr(topic, "topic_id", None)
        if not topic.name and topic_id is not None:  # the Java client names such a topic with an empty string
            found = node.cluster.topic_by_id(topic_id.hex)
            names.append(topic_id if found is None else found.name)
        else:
            names.append(topic.name or "")
    return tuple(dict.fromkeys(names))  # a topic that is named again is answered once, as with Kafka


async def _create_and_answer(
    node: "Node",
    context: "RequestContext",
    request: Any,
    names: "tuple[str | UUID, ...]",
    missing: Iterable[str],
) -> "Values | Encoded":
    errors: dict[str, ErrorCode] = {}
    for name in dict.fromkeys(missing):
        try:
            check_topic_name(name)
            if name == OFFSETS_TOPIC:
                await node.ensure_offsets_topic()
            elif name not in INTERNAL_TOPICS:
                await node.ensure_topic(CreateTopic(name=name, topic_id=uuid4().hex))
        except BrokerError as error:
            errors[name] = error.code
    await room_for_answer(context.slot)
    return _answer(node, context, request, names, errors)


def _answer(
    node: "Node",
    context: "RequestContext",
    request: Any,
    names: "tuple[str | UUID, ...] | None",
    errors: dict[str, ErrorCode],
) -> "Values | Encoded":
    topic_operations = getattr(request, "include_topic_authorized_operations", False)
    cluster_operations = getattr(request, "include_cluster_authorized_operations", False)
    key = (context.version, names, topic_operations, cluster_operations)
    cached = None if errors else node.metadata_answers.get(key)
    if cached is not None:
        return cached
    operations = TOPIC_OPERATIONS if topic_operations else AUTHORIZED_NOT_ASKED
    if names is None:
        topics = [topic_values(node, topic, operations) for topic in node.cluster.topics.values()]
    else:
        topics = [_named(node, name, operations, errors) for name in names]
    values = {
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port}
            for broker in node.cluster.alive_brokers()
        ],
        "cluster_id": node.cluster_id,
        "controller_id": node.decider_id,
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if cluster_operations else AUTHORIZED_NOT_ASKED,
    }
    encoded = bytes(write_response(ApiKey.METADATA, context.version, 0, values)[4:])
    if not errors:
        node.metadata_answers.put(key, encoded)
    return encoded


def _named(node: "Node", name: "str | UUID", operations: int, errors: dict[str, ErrorCode]) -> "Values":
    if isinstance(name, UUID):
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": name, "partitions": ()}
    topic = node.cluster.topics.get(name)
    if topic is not None:
        return topic_values(node, topic, operations)
    error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        check_topic_name(name)
    except BrokerError as refused:
        error = refused.code
    return {"error_code": error, "name": name, "topic_id": None, "partitions": ()}


def topic_values(node: "Node", topic: TopicImage, operations: int, indexes: Iterable[int] | None = None) -> "Values":
    """Describe a topic with all its partitions, or those of `indexes`."""
    partitions = []
    is_alive = node.cluster.is_alive
    for index in range(len(topic.partitions)) if indexes is None else indexes:
        partition = topic.partitions[index]
        alive = is_alive(partition.leader)
        partitions.append(
            {
                "error_code": ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
                "partition_index": index,
                "leader_id": partition.leader if alive else NO_LEADER,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "offline_replicas": [replica for replica in partition.replicas if not is_alive(replica)],
            }
        )
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": UUID(hex=topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }
