"""Heartbeat: a member of a group is alive."""

from typing import TYPE_CHECKING, Any

from log_broker.core.group_protocol import Heartbeat
from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    error = node.groups.check(request.group_id)
    if error is ErrorCode.NONE:
        answer = node.groups.ask(
            request.group_id,
            lambda token: Heartbeat(
                token=token,
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=getattr(request, "group_instance_id", None),
            ),
        )
        # A heartbeat needs no disk, so its answer is there at once.
        error = ErrorCode.UNKNOWN_MEMBER_ID if answer is None else answer.result()
    return {"error_code": error}
