"""ConsumerGroupHeartbeat: a member of a KIP-848 group joins, stays or leaves, and learns what it is to read."""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID, uuid4

from log_broker.core.cluster.features import GROUP_VERSION
from log_broker.core.groups.consumer_events import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from log_broker.core.groups.consumer_group_records import TopicIdPartitions
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.net.rights import Guarded, HasAuthorizer, refused, rights_of
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

NAMES_ITSELF_FROM = 1
NO_TOPIC_ID = UUID(int=0)


class _Host(Cluster, HasAuthorizer, HasGroups, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one ConsumerGroupHeartbeat request, once what it changes is durable."""
    if not node.cluster.levels[GROUP_VERSION]:
        message = f"{GROUP_VERSION} is at 0: raise it for groups of this protocol, or use the classic one."
        return _values(
            ConsumerHeartbeatAnswer(error=ErrorCode.UNSUPPORTED_VERSION, message=message, member_id=request.member_id)
        )
    error = ErrorCode.INVALID_REQUEST if not request.group_id.strip() else node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return _values(ConsumerHeartbeatAnswer(error=error, message=error.name, member_id=request.member_id))
    regex = getattr(request, "subscribed_topic_regex", None)
    topics = request.subscribed_topic_names
    rights = rights_of(node, context.slot)
    answer = node.groups.ask(
        request.group_id,
        lambda token: ConsumerHeartbeat(
            token=token,
            member_id=request.member_id,
            fresh_id=str(uuid4()),
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=context.header.client_id or "",
            client_host=f"/{context.slot.peer.rpartition(':')[0]}",
            rebalance_timeout_ms=request.rebalance_timeout,
            topics=None if topics is None else frozenset(topics),
            regex=regex,
            assignor=request.server_assignor,
            owned=_places(request.topic_partitions),
            names_itself=context.version >= NAMES_ITSELF_FROM,
            may_describe=None if rights is None else partial(rights.may, Operation.DESCRIBE, ResourceType.TOPIC),
        ),
        create=request.member_epoch == 0,
    )
    if answer is None:
        return _values(
            ConsumerHeartbeatAnswer(
                error=ErrorCode.GROUP_ID_NOT_FOUND,
                message=f"Group {request.group_id} not found.",
                member_id=request.member_id,
            )
        )
    return _values(await answer)


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Refuse members that name topics which they may not describe."""
    names = guarded.request.subscribed_topic_names or ()
    if all(rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names):
        return guarded
    raise refused(ResourceType.TOPIC)


def _places(topics: Any) -> TopicIdPartitions | None:
    if topics is None:
        return None
    return frozenset(
        ((topic.topic_id or NO_TOPIC_ID).hex, partition) for topic in topics for partition in topic.partitions
    )


def _values(answer: ConsumerHeartbeatAnswer) -> "Values":
    return {
        "error_code": answer.error,
        "error_message": answer.message,
        "member_id": answer.member_id or None,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": None if answer.assignment is None else {"topic_partitions": by_topic_id(answer.assignment)},
    }


def by_topic_id(places: TopicIdPartitions) -> "list[dict[str, Any]]":
    """Return partitions grouped as the protocol has them."""
    grouped: dict[str, list[int]] = {}
    for topic_id, partition in sorted(places):
        grouped.setdefault(topic_id, []).append(partition)
    return [{"topic_id": UUID(hex=topic_id), "partitions": numbers} for topic_id, numbers in grouped.items()]
