"""InitProducerId: an id and an epoch for a producer, never given out twice in the life of the cluster."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.core.transactions.protocol import Answer
from log_broker.core.transactions.transaction import EPOCH_MAX
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.ports import HasTransactions
from log_broker.server.net.rights import Guarded, refused
from log_broker.server.process.ports import Cluster
from log_broker.server.quorum.ports import HasProducerIds

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

FENCED_FROM = 4


class _Host(Cluster, HasProducerIds, HasTransactions, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    """Answer one InitProducerId request."""
    producer_id, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    try:
        if request.transactional_id is None:
            answer = await _idempotent(node, producer_id, epoch)
        else:
            answer = await _transactional(node, request, (producer_id, epoch))
    except BrokerError as error:
        answer = Answer(error.code)
    if answer.error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM:
        answer = Answer(ErrorCode.INVALID_PRODUCER_EPOCH)
    return {
        "error_code": answer.error,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Let those have an id who may write with the transactional id, or without one somewhere (KIP-679)."""
    transactional_id = guarded.request.transactional_id
    if transactional_id is not None:
        if not rights.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            raise refused(ResourceType.TRANSACTIONAL_ID)
    elif not (rights.may_cluster(Operation.IDEMPOTENT_WRITE) or rights.may_some(Operation.WRITE, ResourceType.TOPIC)):
        raise refused(ResourceType.CLUSTER)
    return guarded


async def _idempotent(node: _Host, producer_id: int, epoch: int) -> Answer:
    if 0 <= producer_id < node.cluster.next_producer_id and 0 <= epoch < EPOCH_MAX - 1:
        # After a lost batch a client goes on with its id in a new epoch (KIP-360). One that nobody can have been given
        # would be given to somebody else some day.
        return Answer(ErrorCode.NONE, producer_id, epoch + 1)
    return Answer(ErrorCode.NONE, await node.producer_ids.take(), 0)


async def _transactional(node: _Host, request: Any, known_as: tuple[int, int]) -> Answer:
    error = node.transactions.check(request.transactional_id)
    if error is ErrorCode.NONE and (known_as[0] < 0) != (known_as[1] < 0):
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        return Answer(error)
    return await node.transactions.init_producer(
        request.transactional_id, request.transaction_timeout, None if known_as[0] < 0 else known_as
    )
