"""AllocateProducerIds: the controller gives a broker a block of producer ids that nobody else will get."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.ports import Cluster
from log_broker.server.quorum.ports import HasProducerIds

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


class _Host(Cluster, HasProducerIds, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    broker = node.cluster.brokers.get(request.broker_id)
    if broker is None:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"node {request.broker_id} has never registered")
    if broker.epoch != request.broker_epoch:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"node {request.broker_id} has registered again since")
    block = await node.producer_ids.reserve()
    return {"error_code": ErrorCode.NONE, "producer_id_start": block.start, "producer_id_len": len(block)}
