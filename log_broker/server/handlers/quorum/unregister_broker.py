"""UnregisterBroker: strike off a broker that is gone for good and holds nothing."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.elections import unregister
from log_broker.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    try:
        await node.authority.submit(lambda image: [unregister(image, request.broker_id)])
    except BrokerError as error:
        return {"error_code": error.code, "error_message": str(error)}
    return {"error_code": ErrorCode.NONE, "error_message": None}
