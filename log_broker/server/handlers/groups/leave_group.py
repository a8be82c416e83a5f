"""LeaveGroup: members go, or an administrator sends static ones away."""

from typing import TYPE_CHECKING, Any

from log_broker.core.groups.protocol import Leave, LeaveAnswer
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

MANY_FROM = 3


async def handle(node: HasGroups, context: "RequestContext", request: Any) -> "Values":
    error = node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return {"error_code": error, "members": ()}
    many = context.version >= MANY_FROM
    members = (
        tuple((member.member_id, member.group_instance_id) for member in request.members)
        if many
        else ((request.member_id, None),)
    )
    answer = node.groups.ask(request.group_id, lambda token: Leave(token=token, members=members))
    answers: tuple[LeaveAnswer, ...] = (
        tuple(LeaveAnswer(member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for member_id, instance_id in members)
        if answer is None
        else await answer
    )
    if not many:
        return {"error_code": answers[0].error}
    return {
        "error_code": ErrorCode.NONE,
        "members": [
            {"member_id": left.member_id, "group_instance_id": left.instance_id, "error_code": left.error}
            for left in answers
        ],
    }
