"""
Metadata: the brokers, the controller, and the topics with who leads each partition.

Asking for a topic that is not there makes it, if client and broker agree to that. Encoding a thousand partitions takes
milliseconds and many clients ask the same, so encoded answers are kept until the image changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID, uuid4

from log_broker.core.cluster.controller import CreateTopic, check_topic_name
from log_broker.core.cluster.image import INTERNAL_TOPICS, NO_LEADER, OFFSETS_TOPIC, TopicImage
from log_broker.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.internal_topics import ensure_offsets_topic
from log_broker.server.net.answer_cache import AnswerCache
from log_broker.server.net.dispatch import HasWorkers, room_for_answer
from log_broker.server.net.rights import HasAuthorizer, rights_of
from log_broker.server.partitions.ports import EnsuresTopics
from log_broker.server.process.ports import Cluster
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import write_response

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Encoded, Later, RequestContext, Values

ALL_TOPICS_IS_EMPTY_BEFORE = 1  # v0 has no null array
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
Errors = Mapping["str | UUID", ErrorCode]
AUTHORIZED_NOT_ASKED = -(2**31)
# One bit for each operation, by Kafka's AclOperation codes; without ACLs everyone may do everything.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))

TOPICS_AT_ONCE_MAX = 500  # in one turn of the event loop, with so many partitions:
PARTITIONS_AT_ONCE_MAX = 1_000


class _Host(Cluster, HasAuthorizer, HasQuorum, EnsuresTopics, Protocol):
    """What is asked of the node here."""

    @property
    def logs(self) -> HasWorkers: ...

    @property
    def controller_id(self) -> int: ...

    @property
    def large_answers(self) -> asyncio.Lock: ...

    @property
    def metadata_answers(self) -> AnswerCache: ...


class Asked(NamedTuple):
    """What is asked for: the same is answered the same until the image changes."""

    version: int
    names: "tuple[str | UUID, ...] | None"
    topic_operations: bool
    cluster_operations: bool
    listener: str
    rights: Rights | None = None  # of whoever asks, where that matters


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values | Encoded | Later":
    """Answer one Metadata request."""
    names = _names(node, context.version, request)
    rights = rights_of(node, context.slot)
    if rights is not None:
        return _answer_allowed(node, context, request, names, rights)
    if names is not None and getattr(request, "allow_auto_topic_creation", True):
        missing = [name for name in names if isinstance(name, str) and name not in node.cluster.topics]
        if missing and node.config.auto_create_topics_enable:
            return partial(_create_and_answer, node, context, request, names, missing)
    return _answer(node, context, request, names, {})


def _answer_allowed(
    node: _Host,
    context: "RequestContext",
    request: Any,
    names: "tuple[str | UUID, ...] | None",
    rights: Rights,
) -> "Values | Encoded | Later":
    """Answer about what may be described: other topics are refused where they were named, and not mentioned else."""
    errors: dict[str | UUID, ErrorCode] = {}
    missing: list[str] = []
    topics = node.cluster.topics
    may_create = getattr(request, "allow_auto_topic_creation", True) and node.config.auto_create_topics_enable
    if names is None:
        names = tuple(name for name in topics if rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name))
        return _answer(node, context, request, names, errors)
    given = {topic.name or "" for topic in request.topics}
    for name in names:
        if not isinstance(name, str):
            continue
        if not rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            # Whoever has just the id learns no name by it.
            errors[name if name in given else UUID(hex=topics[name].topic_id)] = REFUSED
        elif name not in topics and may_create:
            if rights.may_cluster(Operation.CREATE) or rights.may(Operation.CREATE, ResourceType.TOPIC, name):
                missing.append(name)
            else:
                errors[name] = REFUSED
    names = tuple(
        name if name in given or not isinstance(name, str) else _id_if_refused(node, name, errors) for name in names
    )
    if missing:
        return partial(_create_and_answer, node, context, request, names, missing, refused=errors)
    return _answer(node, context, request, names, errors)


def _id_if_refused(node: _Host, name: str, errors: Errors) -> "str | UUID":
    topic_id = UUID(hex=node.cluster.topics[name].topic_id)
    return topic_id if topic_id in errors else name


def cluster_operations(rights: Rights) -> int:
    """Return the bits of what somebody may do with the cluster, none for who may not describe it (KIP-430)."""
    name = CLUSTER_NAME
    return rights.operations(ResourceType.CLUSTER, name) if rights.may_cluster(Operation.DESCRIBE) else 0


def _names(node: _Host, version: int, request: Any) -> "tuple[str | UUID, ...] | None":
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
    node: _Host,
    context: "RequestContext",
    request: Any,
    names: "tuple[str | UUID, ...]",
    missing: Iterable[str],
    *,
    refused: Errors = MappingProxyType({}),
) -> "Values | Encoded":
    errors: dict[str | UUID, ErrorCode] = dict(refused)
    for name in dict.fromkeys(missing):
        try:
            check_topic_name(name)
            if name == OFFSETS_TOPIC:
                await ensure_offsets_topic(node)
            elif name not in INTERNAL_TOPICS:
                await node.ensure_topic(CreateTopic(name=name, topic_id=uuid4().hex))
        except BrokerError as error:
            errors[name] = error.code
    await room_for_answer(context.slot)
    answer = _answer(node, context, request, names, errors)
    return await answer() if callable(answer) else answer


def _answer(
    node: _Host,
    context: "RequestContext",
    request: Any,
    names: "tuple[str | UUID, ...] | None",
    errors: Errors,
) -> "Encoded | Callable[[], Awaitable[Encoded]]":
    asked = Asked(
        context.version,
        names,
        getattr(request, "include_topic_authorized_operations", False),
        getattr(request, "include_cluster_authorized_operations", False),
        context.slot.listener,
        rights_of(node, context.slot),
    )
    cached = None if errors else node.metadata_answers.get(asked)
    if cached is not None:
        return cached
    topics = node.cluster.topics
    wanted = (
        topics.values()
        if names is None
        else [topics[name] for name in names if isinstance(name, str) and name in topics]
    )
    if max(len(wanted), len(names or ())) > TOPICS_AT_ONCE_MAX or _partitions(wanted) > PARTITIONS_AT_ONCE_MAX:
        return partial(_answer_in_turns, node, asked, errors)
    return _keep(node, asked, errors, _encode(asked, _values(node, asked, _topics(node, asked, errors))))


async def _answer_in_turns(node: _Host, asked: Asked, errors: Errors) -> "Encoded":
    """Describe many topics, some in each turn of the event loop; who asks for the same meanwhile waits for that."""
    async with node.large_answers:
        cached = None if errors else node.metadata_answers.get(asked)
        if cached is not None:
            return cached
        version = node.cluster.version
        names = tuple(node.cluster.topics) if asked.names is None else asked.names
        described: list[Values] = []
        left = PARTITIONS_AT_ONCE_MAX
        for name in names:
            if asked.names is None and name not in node.cluster.topics:
                continue  # it was deleted since
            topic = node.cluster.topics.get(name) if isinstance(name, str) else None
            if topic is not None and len(topic.partitions) > PARTITIONS_AT_ONCE_MAX:
                described.append(
                    await topic_values_in_turns(node, topic, _operations(asked, topic.name), PARTITIONS_AT_ONCE_MAX)
                )
                continue
            described += _topics(node, asked._replace(names=(name,)), errors)
            left -= 1 + len(described[-1]["partitions"])
            if left <= 0:
                await asyncio.sleep(0)
                left = PARTITIONS_AT_ONCE_MAX
        encoded = await node.logs.aside(partial(_encode, asked, _values(node, asked, described)))
        return _keep(node, asked, errors, encoded) if node.cluster.version == version else encoded


def _operations(asked: Asked, topic: str) -> int:
    if not asked.topic_operations:
        return AUTHORIZED_NOT_ASKED
    return TOPIC_OPERATIONS if asked.rights is None else asked.rights.operations(ResourceType.TOPIC, topic)


def _keep(node: _Host, asked: Asked, errors: Errors, encoded: bytes) -> bytes:
    if not errors:
        node.metadata_answers.put(asked, encoded)
    return encoded


def _partitions(topics: Collection[TopicImage]) -> int:
    return sum(len(topic.partitions) for topic in topics)


def _encode(asked: Asked, values: "Values") -> bytes:
    return bytes(write_response(ApiKey.METADATA, asked.version, 0, values)[4:])


def _decider_id(node: _Host) -> int:
    """
    The broker that clients are told to take for the controller: this one.

    It answers, as they can see, and passes on what it does not decide. The controller may have died a moment ago, and
    some clients wait for it rather than ask again.
    """
    node_id = node.static_config.node_id
    return node_id if node.cluster.is_alive(node_id) else node.controller_id


def _values(node: _Host, asked: Asked, topics: "list[Values]") -> "Values":
    return {
        "brokers": [
            {"node_id": broker.node_id, "host": endpoint[0], "port": endpoint[1]}
            for broker in node.cluster.alive_brokers()
            if (endpoint := broker.endpoint(asked.listener)) is not None
        ],
        "cluster_id": node.cluster_id,
        "controller_id": _decider_id(node),
        "topics": topics,
        "cluster_authorized_operations": _cluster_operations(asked),
    }


def _cluster_operations(asked: Asked) -> int:
    if not asked.cluster_operations:
        return AUTHORIZED_NOT_ASKED
    return CLUSTER_OPERATIONS if asked.rights is None else cluster_operations(asked.rights)


def _topics(node: _Host, asked: Asked, errors: Errors) -> "list[Values]":
    if asked.names is None:
        topics = node.cluster.topics.values()
        return [topic_values(node, topic, _operations(asked, topic.name)) for topic in topics]
    return [_named(node, name, asked, errors) for name in asked.names]


def _named(node: _Host, name: "str | UUID", asked: Asked, errors: Errors) -> "Values":
    if isinstance(name, UUID):
        return {
            "error_code": errors.get(name, ErrorCode.UNKNOWN_TOPIC_ID),
            "name": None,
            "topic_id": name,
            "partitions": (),
        }
    if errors.get(name) is REFUSED:
        # Not even whether it is there is told.
        return {"error_code": errors[name], "name": name, "topic_id": None, "partitions": ()}
    topic = node.cluster.topics.get(name)
    if topic is not None:
        return topic_values(node, topic, _operations(asked, name))
    error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        check_topic_name(name)
    except BrokerError as refused:
        error = refused.code
    return {"error_code": error, "name": name, "topic_id": None, "partitions": ()}


def topic_values(node: Cluster, topic: TopicImage, operations: int, indexes: Iterable[int] | None = None) -> "Values":
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


async def topic_values_in_turns(
    node: Cluster, topic: TopicImage, operations: int, at_once_max: int, indexes: range | None = None
) -> "Values":
    """Describe a topic as `topic_values` does, so many partitions in each turn of the event loop."""
    partitions: list[Values] = []
    async for some in in_turns(range(len(topic.partitions)) if indexes is None else indexes, at_once_max):
        partitions += topic_values(node, topic, operations, some)["partitions"]
    return {**topic_values(node, topic, operations, ()), "partitions": partitions}
