"""InitProducerId: an id for an idempotent producer, never given out twice in the life of the cluster."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

EPOCH_MAX = 2**15 - 1


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    if request.transactional_id is not None:
        # Fatal for the client, where an unsupported version would have it ask for ever.
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "producer_id": -1, "producer_epoch": -1}
    try:
        producer_id, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
        if producer_id >= 0 and 0 <= epoch < EPOCH_MAX - 1:
            # After a lost batch a client goes on with its id in a new epoch (KIP-360).
            return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": epoch + 1}
        return {
            "error_code": ErrorCode.NONE,
            "producer_id": await node.producer_ids.take(),
            "producer_epoch": 0,
        }
    except BrokerError as error:
        return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}
