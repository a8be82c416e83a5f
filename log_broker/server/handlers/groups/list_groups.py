"""ListGroups: the groups that this broker coordinates."""

from typing import TYPE_CHECKING, Any

from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.net.rights import Guarded, split

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values":
    """Answer one ListGroups request."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": CONSUMER_PROTOCOL if group.consumer is not None else group.classic.protocol_type or "",
            "group_state": group.state_name,
            "group_type": group.kind,
        }
        for group in node.groups.all()
        if (not states or group.state_name.lower() in states) and (not types or group.kind in types)
    ]
    return {"error_code": ErrorCode.NONE, "groups": groups}


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Leave in the answer the groups that may be described."""
    if rights.may_cluster(Operation.DESCRIBE):
        return guarded

    def finish(answer: "Values") -> "Values":
        groups, _ = split(
            answer["groups"], lambda group: rights.may(Operation.DESCRIBE, ResourceType.GROUP, group["group_id"])
        )
        return {**answer, "groups": groups}

    return guarded._replace(finish=finish)
