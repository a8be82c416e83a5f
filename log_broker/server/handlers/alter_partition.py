"""AlterPartition: a leader wants another ISR."""

from typing import TYPE_CHECKING, Any

from log_broker.core.isr_changes import IsrMember, IsrWish
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.controller import Outcome, active_controller

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node

MEMBERS_HAVE_EPOCHS_FROM = 3


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    wishes = [
        IsrWish(
            topic.topic_id.hex if topic.topic_id else "",
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            _members(context.version, partition),
            is_recovering=bool(partition.leader_recovery_state),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        outcomes = await active_controller(node).alter_partitions(request.broker_id, request.broker_epoch, wishes)
    except BrokerError as error:
        return {"error_code": error.code, "topics": ()}
    results = iter(outcomes)
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "topic_id": topic.topic_id,
                "partitions": [_answer(partition.partition_index, next(results)) for partition in topic.partitions],
            }
            for topic in request.topics
        ],
    }


def _members(version: int, partition: Any) -> tuple[IsrMember, ...]:
    if version < MEMBERS_HAVE_EPOCHS_FROM:
        return tuple(IsrMember(node_id) for node_id in partition.new_isr)
    return tuple(IsrMember(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs)


def _answer(index: int, outcome: Outcome) -> "Values":
    now = outcome.image
    return {
        "partition_index": index,
        "error_code": outcome.error,
        "leader_id": -1 if now is None else now.leader,
        "leader_epoch": 0 if now is None else now.leader_epoch,
        "isr": () if now is None else now.isr,
        "leader_recovery_state": 0 if now is None else int(now.recovering),
        "partition_epoch": 0 if now is None else now.partition_epoch,
    }
