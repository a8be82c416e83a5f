"""AddOffsetsToTxn: a transaction is about to commit offsets of a group, in the partition that the group belongs to."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.image import OFFSETS_TOPIC
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.internal_topics import TopicHost, ensure_offsets_topic, group_partition
from log_broker.server.coordinators.ports import HasTransactions

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

FENCED_FROM = 2


class _Host(HasTransactions, TopicHost, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    error = await _add(node, request)
    if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return {"error_code": error}


async def _add(node: _Host, request: Any) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = node.transactions.check(request.transactional_id)
    if error is not ErrorCode.NONE:
        return error
    try:
        await ensure_offsets_topic(node)
    except BrokerError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition = group_partition(node.cluster, request.group_id)
    if partition is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return await node.transactions.add_partitions(
        request.transactional_id, (request.producer_id, request.producer_epoch), [(OFFSETS_TOPIC, partition)]
    )
