"""EndTxn: commit or abort a transaction; from version 5 on the producer goes on in a new epoch (KIP-890)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.transactions.protocol import Answer
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.ports import HasTransactions

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

FENCED_FROM = 2
BUMPS_FROM = 5


async def handle(node: HasTransactions, context: "RequestContext", request: Any) -> "Values":
    error = node.transactions.check(request.transactional_id)
    answer = Answer(error)
    if error is ErrorCode.NONE:
        try:
            answer = await node.transactions.end(
                request.transactional_id,
                (request.producer_id, request.producer_epoch),
                committed=request.committed,
                client_version=2 if context.version >= BUMPS_FROM else 0,
            )
        except BrokerError as failure:
            answer = Answer(failure.code)
    if answer.error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM:
        answer = Answer(ErrorCode.INVALID_PRODUCER_EPOCH)
    return {
        "error_code": answer.error,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }
