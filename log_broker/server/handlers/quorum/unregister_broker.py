"""UnregisterBroker: strike off a broker that is gone for good and holds nothing."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.elections import unregister
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: HasAuthority, context: "RequestContext", request: Any) -> "Values":
    try:
        await node.authority.submit(lambda image: [unregister(image, request.broker_id)])
    except BrokerError as error:
        return {"error_code": error.code, "error_message": str(error)}
    return {"error_code": ErrorCode.NONE, "error_message": None}
