"""OffsetFetch: how far groups have read; one group up to version 7, many from version 8."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from log_broker.core.groups.protocol import TopicPartition
from log_broker.core.groups.records import CommittedOffset
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.handlers.groups.describe_groups import described
from log_broker.server.net.rights import Guarded, joined, refused, split

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext, Values

MANY_GROUPS_FROM = 8
GROUP_ERROR_FROM = 2
NO_EPOCH = -1
_NOTHING = CommittedOffset(offset=-1)
_UNSTABLE = {
    "committed_offset": -1,
    "committed_leader_epoch": -1,
    "metadata": "",
    "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values | Later":
    """Answer one OffsetFetch request."""
    if context.version >= MANY_GROUPS_FROM:
        asked = {group.group_id: group for group in request.groups}

        def answer(group_id: str) -> "Values":
            group = asked[group_id]
            member = (getattr(group, "member_id", None), getattr(group, "member_epoch", NO_EPOCH))
            return _group(node, group_id, group.topics, require_stable=request.require_stable, member=member)

        return described("groups", asked, answer)
    return _group(
        node,
        request.group_id,
        request.topics,
        require_stable=getattr(request, "require_stable", False),
        partition_errors=context.version < GROUP_ERROR_FROM,
    )


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Look at each group, and within those that may be described at each topic."""
    many = context.version >= MANY_GROUPS_FROM
    groups = guarded.request.groups if many else (guarded.request,)
    allowed, denied = split(groups, lambda group: rights.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
    if denied and not many:
        raise refused(ResourceType.GROUP)
    seen = [_seen(rights, group) for group in allowed]
    hidden = {group.group_id: topics for group, (_, topics) in zip(allowed, seen, strict=True)}
    asked = tuple(group for group, _ in seen)
    request = replace(guarded.request, groups=asked) if many else asked[0]
    finish = partial(_with_refused, rights, hidden)
    if not many:
        return Guarded(request, finish)
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    refusals = [{"group_id": group.group_id, "topics": (), "error_code": code} for group in denied]
    return Guarded(
        request,
        lambda answer: joined({**answer, "groups": list(map(finish, answer["groups"]))}, {"groups": refusals}),
    )


def _may_describe(rights: Rights, topic: str) -> bool:
    return rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _seen(rights: Rights, group: Any) -> tuple[Any, "list[Values]"]:
    """Return what is asked of a group as far as it may be known, and the answers about the other topics."""
    if group.topics is None:
        return group, []
    allowed, denied = split(group.topics, lambda topic: _may_describe(rights, topic.name))
    unknown = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
    return replace(group, topics=allowed), [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": index, **unknown, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
                for index in topic.partition_indexes
            ],
        }
        for topic in denied
    ]


def _with_refused(rights: Rights, hidden: "Mapping[str, list[Values]]", answer: "Values") -> "Values":
    """Leave out topics that nobody named and that may not be described, and add those that were named."""
    topics, _ = split(answer["topics"], lambda topic: _may_describe(rights, topic["name"]))
    return {**answer, "topics": [*topics, *hidden.get(answer["group_id"], ())]}


def _group(
    node: HasGroups,
    group_id: str,
    topics: "Iterable[Any] | None",
    *,
    require_stable: bool,
    member: tuple[str | None, int] = (None, NO_EPOCH),
    partition_errors: bool = False,
) -> "Values":
    """
    Answer for one group; `topics` None stands for all that it has committed.

    With `require_stable` a partition that an open transaction commits has no answer yet (KIP-447).
    """
    error = node.groups.check(group_id)
    group = node.groups.find(group_id) if error is ErrorCode.NONE else None
    if group is not None and group.consumer is not None:
        error = group.consumer.check_fetch(*member)
    wanted: list[tuple[str, list[int]]] = []
    if topics is not None:
        named: dict[str, dict[int, None]] = {}  # what is named again is answered once
        for topic in topics:
            named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        wanted = [(name, list(partitions)) for name, partitions in named.items()]
    elif group is not None:
        by_topic: dict[str, list[int]] = {}
        for name, partition in sorted(group.offsets.partitions()):
            by_topic.setdefault(name, []).append(partition)
        wanted = list(by_topic.items())

    def partition_values(place: TopicPartition) -> "Values":
        committed = None if group is None else group.offsets.get(place)
        if require_stable and group is not None and group.offsets.is_held(place):
            return {"partition_index": place[1], **_UNSTABLE}
        found = committed or _NOTHING
        return {
            "partition_index": place[1],
            "committed_offset": found.offset,
            "committed_leader_epoch": found.leader_epoch,
            "metadata": found.metadata,
            "error_code": error if partition_errors else ErrorCode.NONE,
        }

    answered = [] if error is not ErrorCode.NONE and not partition_errors else wanted
    return {
        "group_id": group_id,
        "error_code": error,
        "topics": [
            {"name": name, "partitions": [partition_values((name, partition)) for partition in partitions]}
            for name, partitions in answered
        ],
    }
