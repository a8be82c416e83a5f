"""AlterPartition: a leader wants another ISR."""

from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from log_broker.core.cluster.isr_changes import IsrMember, IsrWish
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.controller import PARTITIONS_AT_ONCE_MAX, HasController, Outcome, active_controller

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

TOPICS_AT_ONCE_MAX = 1_000  # in one turn of the event loop
MEMBERS_HAVE_EPOCHS_FROM = 3


async def handle(node: HasController, context: "RequestContext", request: Any) -> "Values":
    asked = [(topic.topic_id, partition) for topic in request.topics for partition in topic.partitions]
    wishes: list[IsrWish] = []
    async for some in in_turns(asked, PARTITIONS_AT_ONCE_MAX):
        wishes += [_wish(context.version, topic_id, partition) for topic_id, partition in some]
    try:
        outcomes = await active_controller(node).alter_partitions(request.broker_id, request.broker_epoch, wishes)
    except BrokerError as error:
        return {"error_code": error.code, "topics": ()}
    answers: list[Values] = []
    async for numbers in in_turns(range(len(asked)), PARTITIONS_AT_ONCE_MAX):
        answers += [_answer(asked[number][1].partition_index, outcomes[number]) for number in numbers]
    left = iter(answers)
    topics: list[Values] = []
    async for named in in_turns(request.topics, TOPICS_AT_ONCE_MAX):
        topics += [
            {"topic_id": topic.topic_id, "partitions": list(islice(left, len(topic.partitions)))} for topic in named
        ]
    return {"error_code": ErrorCode.NONE, "topics": topics}


def _wish(version: int, topic_id: UUID | None, partition: Any) -> IsrWish:
    return IsrWish(
        topic_id.hex if topic_id else "",
        partition.partition_index,
        partition.leader_epoch,
        partition.partition_epoch,
        _members(version, partition),
        is_recovering=bool(partition.leader_recovery_state),
    )


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
