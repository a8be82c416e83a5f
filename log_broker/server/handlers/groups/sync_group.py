"""SyncGroup: a member asks for its assignment; the leader brings everyone's."""

from typing import TYPE_CHECKING, Any

from log_broker.core.groups.protocol import Sync, SyncAnswer
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

PROTOCOL_REQUIRED_FROM = 5


async def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values":
    protocol_type = getattr(request, "protocol_type", None)
    protocol = getattr(request, "protocol_name", None)
    error = node.groups.check(request.group_id)
    if context.version >= PROTOCOL_REQUIRED_FROM and (protocol_type is None or protocol is None):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if error is not ErrorCode.NONE:
        return _values(SyncAnswer(error=error))
    answer = node.groups.ask(
        request.group_id,
        lambda token: Sync(
            token=token,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=getattr(request, "group_instance_id", None),
            protocol_type=protocol_type,
            protocol=protocol,
            assignments={entry.member_id: entry.assignment for entry in request.assignments},
        ),
    )
    return _values(SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID) if answer is None else await answer)


def _values(answer: SyncAnswer) -> "Values":
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }
