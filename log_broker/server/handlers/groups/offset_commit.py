"""OffsetCommit: remember how far a group has read."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.groups.protocol import Commit
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.offset_commits import OffsetHost, Offsets, commit_values, read_offsets
from log_broker.server.coordinators.ports import HasGroups

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

MEMBER_EPOCH_FROM = 9


class _Host(HasGroups, OffsetHost, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    offsets, refused = read_offsets(node, request)
    error = await _commit(node, context, request, offsets)
    return commit_values(request, refused, error)


async def _commit(node: _Host, context: "RequestContext", request: Any, offsets: Offsets) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return error
    generation = request.generation_id_or_member_epoch
    answer = node.groups.ask(
        request.group_id,
        lambda token: Commit(
            token=token,
            member_id=request.member_id,
            generation=generation,
            instance_id=getattr(request, "group_instance_id", None),
            offsets=offsets,
            knows_epochs=context.version >= MEMBER_EPOCH_FROM,
        ),
        create=generation < 0,
    )
    if answer is None:
        return ErrorCode.GROUP_ID_NOT_FOUND if context.version >= MEMBER_EPOCH_FROM else ErrorCode.ILLEGAL_GENERATION
    result: ErrorCode = await answer
    return result
