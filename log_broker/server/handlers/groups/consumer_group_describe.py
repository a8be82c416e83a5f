"""ConsumerGroupDescribe: KIP-848 groups, what their members read now and what they are on their way to."""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.groups.consumer_group import ConsumerGroup
from log_broker.core.groups.consumer_group_records import TopicIdPartitions
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.handlers.groups.consumer_group_heartbeat import by_topic_id
from log_broker.server.handlers.groups.describe_groups import GROUP_OPERATIONS, described, with_operations
from log_broker.server.net.rights import Guarded, then
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext, Values

MEMBER_IS_CLASSIC = 0
MEMBER_IS_CONSUMER = 1


class _Host(Cluster, HasGroups, Protocol):
    """What is asked of the node here."""


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values | Later":
    """Answer one ConsumerGroupDescribe request."""
    operations = {"authorized_operations": GROUP_OPERATIONS} if request.include_authorized_operations else {}
    return described("groups", request.group_ids, lambda group_id: {**_group(node, group_id), **operations})


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Refuse to tell of groups that read what may not be described, and tell what may be done with the others."""
    finish = partial(_without_hidden, rights)
    if guarded.request.include_authorized_operations:
        finish = then(partial(with_operations, rights), finish)  # type: ignore[assignment]
    return guarded._replace(finish=then(finish, guarded.finish))


def _without_hidden(rights: Rights, answer: "Values") -> "Values":
    def is_seen(group: "Values") -> bool:
        topics = {
            topic["topic_name"]
            for member in group["members"]
            for assignment in (member["assignment"], member["target_assignment"])
            for topic in assignment["topic_partitions"]
        }
        return all(rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in topics)

    hidden = {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": "The group has described topic(s) that the client is not authorized to describe.",
        "members": (),
    }
    return {**answer, "groups": [group if is_seen(group) else {**group, **hidden} for group in answer["groups"]]}


def _group(node: _Host, group_id: str) -> "Values":
    error = node.groups.check(group_id)
    message = None if error is ErrorCode.NONE else error.name
    group = node.groups.find(group_id) if error is ErrorCode.NONE else None
    if group is not None and group.consumer is not None:
        return {
            "error_code": ErrorCode.NONE,
            "group_id": group_id,
            "group_state": group.state_name,
            "group_epoch": group.consumer.state.epoch,
            "assignment_epoch": group.consumer.state.target_epoch,
            "assignor_name": group.consumer.assignor,
            "members": _members(node, group.consumer),
        }
    if error is ErrorCode.NONE:
        error = ErrorCode.GROUP_ID_NOT_FOUND
        message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }


def _members(node: _Host, group: ConsumerGroup) -> "list[Values]":
    state = group.state
    return [
        {
            "member_id": member_id,
            "instance_id": subscription.instance_id,
            "rack_id": subscription.rack_id,
            "member_epoch": state.owned_by(member_id).epoch,
            "client_id": subscription.client_id,
            "client_host": subscription.client_host,
            "subscribed_topic_names": sorted(subscription.topics),
            "subscribed_topic_regex": subscription.regex,
            "assignment": _assignment(node, state.owned_by(member_id).assigned),
            "target_assignment": _assignment(node, state.target_of(member_id)),
            "member_type": MEMBER_IS_CONSUMER if subscription.classic is None else MEMBER_IS_CLASSIC,
        }
        for member_id, subscription in state.subscriptions.items()
    ]


def _assignment(node: _Host, places: TopicIdPartitions) -> "Values":
    names = node.cluster.names
    known = [topic for topic in by_topic_id(places) if topic["topic_id"].hex in names]
    return {"topic_partitions": [{**topic, "topic_name": names[topic["topic_id"].hex]} for topic in known]}
