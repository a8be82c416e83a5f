"""Heartbeat: a member of a group is alive."""

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from log_broker.core.groups.protocol import Heartbeat
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext, Values


def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values | Later":
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
        # A heartbeat needs no disk: its answer is there at once, unless it stands behind one that does.
        if answer is not None and not answer.done():
            return partial(_later, answer)
        error = ErrorCode.UNKNOWN_MEMBER_ID if answer is None else answer.result()
    return {"error_code": error}


async def _later(answer: "Awaitable[ErrorCode]") -> "Values":
    return {"error_code": await answer}
