"""CreateTopics: decide on the topics of the request, so many at a time, and make those that are allowed durable."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID, uuid4

from log_broker.core.cluster.controller import CreateTopic, create_topic
from log_broker.core.cluster.image import ClusterImage, TopicImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.rights import Guarded, only, split, then
from log_broker.server.ops.config_reports import ReportHost, topic_entries
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasAuthority
from log_broker.server.replication.ports import HasReplicas

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


TOPICS_AT_ONCE_MAX = 50  # in one turn of the event loop; each takes some tenths of a millisecond
PARTITIONS_PER_REQUEST_MAX = 10_000  # as Kafka: each makes a directory, and all of them one batch of metadata


class _Host(HasAuthority, HasReplicas, ReportHost, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer when every new partition that is this node's is there."""
    repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    answers: dict[str, Values] = {}
    created: list[TopicImage] = []
    partitions = sum(max(topic.num_partitions, len(topic.assignments), 1) for topic in request.topics)

    def decide(topics: "Sequence[Any]", image: ClusterImage) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        for topic in topics:
            try:
                if partitions > PARTITIONS_PER_REQUEST_MAX:
                    raise too_many_partitions(partitions)
                if topic.name in repeated:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                record = create_topic(image, _command(topic), node.config)
            except BrokerError as error:
                answers[topic.name] = {"error_code": error.code, "error_message": str(error)}
                continue
            image.replay(record)
            records.append(record)
            answers[topic.name] = {}
            created.append(image.topics[topic.name])
        return [] if request.validate_only else records

    async for topics in in_turns(request.topics, TOPICS_AT_ONCE_MAX):
        await node.authority.submit(partial(decide, topics))
    await node.replicas.until_made()
    async for images in in_turns(created, TOPICS_AT_ONCE_MAX):
        for image in images:
            answers[image.name] = _created(node, image)
    if request.validate_only:
        answers = {name: {**answer, "topic_id": None} for name, answer in answers.items()}
    return {"topics": [{"name": name, "topic_id": None, "configs": (), **answer} for name, answer in answers.items()]}


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the topics that may not be made, and hide settings from who may not see them."""

    def may(operation: Operation) -> Callable[[Any], bool]:
        return lambda topic: rights.may(operation, ResourceType.TOPIC, topic.name)

    if not rights.may_cluster(Operation.CREATE):
        api = context.header.api_key, context.version
        guarded = only(api, guarded, "topics", may(Operation.CREATE), ResourceType.TOPIC)
    _, hidden = split(guarded.request.topics, may(Operation.DESCRIBE_CONFIGS))
    names = {topic.name for topic in hidden}
    return guarded._replace(finish=then(guarded.finish, partial(_without_configs, names))) if names else guarded


def _without_configs(names: set[str], answer: "Values") -> "Values":
    """Hide what topics have become; see KIP-525."""
    unknown = {"num_partitions": -1, "replication_factor": -1, "configs": None}
    hidden = {**unknown, "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    topics = [
        {**topic, **hidden} if topic["name"] in names and topic["error_code"] is ErrorCode.NONE else topic
        for topic in answer["topics"]
    ]
    return {**answer, "topics": topics}


def too_many_partitions(count: int) -> BrokerError:
    """Say that a request asks for more new partitions than are made at once."""
    return BrokerError(
        ErrorCode.POLICY_VIOLATION,
        f"Excessively large number of partitions per request: {count}; "
        f"{PARTITIONS_PER_REQUEST_MAX} can be made at once.",
    )


def _command(topic: Any) -> CreateTopic:
    assignments = None
    if topic.assignments:
        assignments = {entry.partition_index: tuple(entry.broker_ids) for entry in topic.assignments}
        if len(assignments) < len(topic.assignments):
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned twice.")
    return CreateTopic(
        name=topic.name,
        topic_id=uuid4().hex,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        overrides={entry.name: entry.value for entry in topic.configs},
    )


def _created(node: _Host, topic: TopicImage) -> "Values":
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topic_id": UUID(hex=topic.topic_id),
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": topic_entries(node, topic, names=None),
    }
