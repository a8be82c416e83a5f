"""OffsetDelete: take committed offsets of topics that the group does not read away."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.groups.protocol import DeleteOffsets
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.partitions.ports import Partitions

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


class _Host(HasGroups, Partitions, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    error = ErrorCode.INVALID_GROUP_ID if not request.group_id else node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return {"error_code": error, "topics": ()}
    places = tuple((topic.name, entry.partition_index) for topic in request.topics for entry in topic.partitions)
    known = tuple(
        (name, partition)
        for name, partition in places
        if node.absence_of(name, partition) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    answer = node.groups.ask(request.group_id, lambda token: DeleteOffsets(token=token, partitions=known))
    result = ErrorCode.GROUP_ID_NOT_FOUND if answer is None else await answer
    if isinstance(result, ErrorCode):
        return {"error_code": result, "topics": ()}
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": entry.partition_index,
                        "error_code": result.get(
                            (topic.name, entry.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    }
                    for entry in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
