"""OffsetCommit: remember how far a group has read."""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.groups.protocol import Commit
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.offset_commits import OffsetHost, Offsets, commit_values, read_offsets
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.net.promised import Promised

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

MEMBER_EPOCH_FROM = 9


class _Host(HasGroups, OffsetHost, Protocol):
    """What is asked of the node here."""


def handle(node: _Host, context: "RequestContext", request: Any) -> "Values | Promised":
    offsets, refused = read_offsets(node, request)
    answer = Promised(partial(commit_values, request, refused))
    error = _commit(node, context, request, offsets, answer)
    return answer if error is ErrorCode.NONE else commit_values(request, refused, error)


def _commit(node: _Host, context: "RequestContext", request: Any, offsets: Offsets, answer: Promised) -> ErrorCode:
    """Have the group answer, or say why it does not."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return error
    knows_epochs = context.version >= MEMBER_EPOCH_FROM
    generation = request.generation_id_or_member_epoch
    commit = Commit(
        token=answer,
        member_id=request.member_id,
        generation=generation,
        instance_id=request.group_instance_id,
        offsets=offsets,
        knows_epochs=knows_epochs,
    )
    if node.groups.tell(request.group_id, commit, create=generation < 0):
        return ErrorCode.NONE
    return ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION
