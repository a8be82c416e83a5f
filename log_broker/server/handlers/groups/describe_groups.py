"""DescribeGroups: the members of groups and what each was assigned."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from log_broker.core.groups.classic_group import ClassicGroup, GroupState
from log_broker.core.security.acls import ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.net.rights import Guarded, then
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext, Values

DESCRIBED_AT_ONCE_MAX = 500
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8))


def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values | Later":
    """Describe each group once, however often it is named."""
    operations = {}
    if getattr(request, "include_authorized_operations", False):
        operations["authorized_operations"] = GROUP_OPERATIONS
    return described("groups", request.groups, lambda group_id: {**_group(node, group_id), **operations})


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Tell of each group what may be done with it."""
    if not getattr(guarded.request, "include_authorized_operations", False):
        return guarded
    return guarded._replace(finish=then(partial(with_operations, rights), guarded.finish))


def with_operations(rights: Rights, answer: "Values") -> "Values":
    """Put what may be done with each group into an answer."""
    groups = [
        {**group, "authorized_operations": rights.operations(ResourceType.GROUP, group["group_id"])}
        for group in answer["groups"]
    ]
    return {**answer, "groups": groups}


def described(field: str, names: Iterable[str], describe: "Callable[[str], Values]") -> "Values | Later":
    """Answer for each of the names once, in several turns of the event loop if there are many."""
    wanted = list(dict.fromkeys(names))
    if len(wanted) <= DESCRIBED_AT_ONCE_MAX:
        return {field: [describe(name) for name in wanted]}
    return partial(_described_in_turns, field, wanted, describe)


async def _described_in_turns(field: str, names: Sequence[str], describe: "Callable[[str], Values]") -> "Values":
    found: list[Values] = []
    async for some in in_turns(names, DESCRIBED_AT_ONCE_MAX):
        found += map(describe, some)
    return {field: found}


def _group(node: HasGroups, group_id: str) -> "Values":
    error = node.groups.check(group_id)
    group = node.groups.find(group_id) if error is ErrorCode.NONE else None
    if group is None or group.consumer is not None:
        # A group of the new protocol is none of those that this api knows; ConsumerGroupDescribe tells of it.
        return {
            "error_code": error,
            "group_id": group_id,
            "group_state": GroupState.DEAD.value if error is ErrorCode.NONE else "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
    classic = group.classic
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": classic.state.value,
        "protocol_type": classic.protocol_type or "",
        "protocol_data": classic.protocol or "" if classic.state is GroupState.STABLE else "",
        "members": _members(classic),
    }


def _members(group: ClassicGroup) -> "list[Values]":
    stable = group.state is GroupState.STABLE
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "member_metadata": member.metadata(group.protocol or "") if stable else b"",
            "member_assignment": member.assignment if stable else b"",
        }
        for member in group.members.values()
    ]
