"""ListGroups: the groups that this broker coordinates."""

from typing import TYPE_CHECKING, Any

from log_broker.core.groups.consumer_protocol import CONSUMER_PROTOCOL
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values":
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
