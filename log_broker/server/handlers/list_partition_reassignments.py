"""ListPartitionReassignments: partitions do not move yet, so none is on its way."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": ()}
