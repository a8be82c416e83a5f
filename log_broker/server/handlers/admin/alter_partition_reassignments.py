"""AlterPartitionReassignments: begin, change or cancel the move of partitions to other brokers (KIP-455)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.controller import HasController, Outcome, active_controller

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

TOPICS_AT_ONCE_MAX = 1_000  # in one turn of the event loop


async def handle(node: HasController, context: "RequestContext", request: Any) -> "Values":
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    wanted: list[tuple[str, int, Sequence[int] | None]] = []
    async for some in in_turns(request.topics, TOPICS_AT_ONCE_MAX):
        wanted += [
            (topic.name, partition.partition_index, partition.replicas)
            for topic in some
            for partition in topic.partitions
        ]
    outcomes = iter(await active_controller(node).reassign(wanted, may_change_factor=may_change_factor))
    responses: list[Values] = []
    async for some in in_turns(request.topics, TOPICS_AT_ONCE_MAX):
        responses += [_response(topic, outcomes) for topic in some]
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "responses": responses,
    }


def _response(topic: Any, outcomes: "Iterator[Outcome]") -> "Values":
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": partition.partition_index,
                "error_code": outcome.error,
                "error_message": outcome.message,
            }
            for partition, outcome in zip(topic.partitions, outcomes, strict=False)
        ],
    }
