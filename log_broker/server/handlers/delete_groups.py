"""DeleteGroups: forget groups without members, and their offsets."""

from typing import TYPE_CHECKING, Any

from log_broker.core.group_protocol import Delete
from log_broker.errors import ErrorCode

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        error = ErrorCode.INVALID_GROUP_ID if not group_id else node.groups.check(group_id)
        if error is ErrorCode.NONE:
            answer = node.groups.ask(group_id, lambda token: Delete(token=token))
            error = ErrorCode.GROUP_ID_NOT_FOUND if answer is None else await answer
        results.append({"group_id": group_id, "error_code": error})
    return {"results": results}
