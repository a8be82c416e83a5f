"""BrokerRegistration: another node of the cluster came up."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.server.authority import LocalAuthority

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    assert isinstance(node.authority, LocalAuthority), "only the controller is asked"
    if request.cluster_id != node.cluster_id:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID}
    if request.broker_id == node.static_config.node_id or request.broker_id < 0 or not request.listeners:
        return {"error_code": ErrorCode.INVALID_REQUEST}
    listener = request.listeners[0]
    incarnation = request.incarnation_id.hex if request.incarnation_id else ""
    epoch = await node.authority.register(request.broker_id, listener.host, listener.port, incarnation)
    return {"error_code": ErrorCode.NONE, "broker_epoch": epoch}
