"""BrokerHeartbeat: another node of the cluster is alive, or leaves."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.authority import LocalAuthority

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    assert isinstance(node.authority, LocalAuthority), "only the controller is asked"
    try:
        fenced = await node.authority.heartbeat(request.broker_id, request.broker_epoch, leaves=request.want_shut_down)
    except BrokerError as error:
        return {"error_code": error.code, "should_shut_down": False}
    return {
        "error_code": ErrorCode.NONE,
        "is_caught_up": True,
        "is_fenced": fenced,
        "should_shut_down": request.want_shut_down,
    }
