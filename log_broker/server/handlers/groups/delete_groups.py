"""DeleteGroups: forget groups without members, and their offsets."""

from typing import TYPE_CHECKING, Any

from log_broker.core.groups.protocol import Delete
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.handlers.groups.describe_groups import DESCRIBED_AT_ONCE_MAX
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values":
    results: list[Values] = []
    async for group_ids in in_turns(list(dict.fromkeys(request.groups_names)), DESCRIBED_AT_ONCE_MAX):
        results += [{"group_id": group_id, "error_code": await _delete(node, group_id)} for group_id in group_ids]
    return {"results": results}


async def _delete(node: HasGroups, group_id: str) -> ErrorCode:
    error = ErrorCode.INVALID_GROUP_ID if not group_id else node.groups.check(group_id)
    if error is not ErrorCode.NONE:
        return error
    answer = node.groups.ask(group_id, lambda token: Delete(token=token))
    deleted: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND if answer is None else await answer
    return deleted
