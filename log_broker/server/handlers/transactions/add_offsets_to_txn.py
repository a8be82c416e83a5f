"""AddOffsetsToTxn: a transaction is about to commit offsets of a group, in the partition that the group belongs to."""

from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.image import OFFSETS_TOPIC
from log_broker.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values
    from log_broker.server.node import Node

FENCED_FROM = 2


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    error = await _add(node, request)
    if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return {"error_code": error}


async def _add(node: "Node", request: Any) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = node.transactions.check(request.transactional_id)
    if error is not ErrorCode.NONE:
        return error
    try:
        await node.ensure_offsets_topic()
    except BrokerError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition = node.group_partition(request.group_id)
    if partition is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return await node.transactions.add_partitions(
        request.transactional_id, (request.producer_id, request.producer_epoch), [(OFFSETS_TOPIC, partition)]
    )
