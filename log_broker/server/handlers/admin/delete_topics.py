"""DeleteTopics: by name, or from version 6 by id."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from log_broker.core.cluster.controller import delete_topic
from log_broker.core.cluster.image import ClusterImage, TopicImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.rights import Guarded, joined, refused, split
from log_broker.server.process.ports import Cluster
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

IDS_FROM = 6
TOPICS_AT_ONCE_MAX = 200  # in one turn of the event loop


class _Host(Cluster, HasAuthority, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one DeleteTopics request."""
    if context.version >= IDS_FROM:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    answers: list[Values] = []

    def decide(some: "Sequence[tuple[str | None, UUID | None]]", image: ClusterImage) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        for name, topic_id in some:
            answer = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE}
            try:
                topic = _find(image, name, topic_id)
                record = delete_topic(topic, node.config)
                image.replay(record)
                records.append(record)
                answer.update(name=topic.name, topic_id=UUID(hex=topic.topic_id))
            except BrokerError as error:
                answer.update(error_code=error.code, error_message=str(error))
            answers.append(answer)
        return records

    async for some in in_turns(wanted, TOPICS_AT_ONCE_MAX):
        await node.authority.submit(partial(decide, some))
    return {"responses": answers}


def guard(node: Cluster, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the topics that may not be deleted; the name of one by its id is told only to who may describe it."""
    if rights.may_cluster(Operation.DELETE):
        return guarded
    array = "topics" if context.version >= IDS_FROM else "topic_names"

    def name_of(entry: Any) -> str | None:
        if isinstance(entry, str):
            return entry
        if entry.topic_id is None or entry.name is not None:
            return entry.name or ""
        topic = node.cluster.topic_by_id(entry.topic_id.hex)
        return None if topic is None else topic.name  # an id that nobody has is no secret

    def may(operation: Operation, entry: Any) -> bool:
        name = name_of(entry)
        return name is None or rights.may(operation, ResourceType.TOPIC, name)

    allowed, denied = split(getattr(guarded.request, array), partial(may, Operation.DELETE))
    if not denied:
        return guarded
    refusal = refused(ResourceType.TOPIC)
    refusals = [
        {
            "name": name_of(entry) if may(Operation.DESCRIBE, entry) else getattr(entry, "name", entry),
            "topic_id": getattr(entry, "topic_id", None),
            "error_code": refusal.code,
            "error_message": str(refusal),
        }
        for entry in denied
    ]
    return Guarded(replace(guarded.request, **{array: allowed}), lambda answer: joined(answer, {"responses": refusals}))


def _find(image: ClusterImage, name: str | None, topic_id: UUID | None) -> TopicImage:
    if name is not None and topic_id is not None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if topic_id is not None:
        topic = image.topic_by_id(topic_id.hex)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return topic
    topic = image.topics.get(name or "")
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
    return topic
