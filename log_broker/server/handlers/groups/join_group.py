"""JoinGroup: a member asks into the next generation of its group."""

from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from log_broker.core.groups.protocol import NO_GENERATION, Join, JoinAnswer
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.process.ports import Cluster

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

ID_ROUND_TRIP_FROM = 4
NULL_PROTOCOL_FROM = 7
SKIP_ASSIGNMENT_FROM = 9
NAME_CHARS_MAX = 8_000  # of the name before a new member id, which answers hold as a string of at most 32,767 bytes


class _Host(Cluster, HasGroups, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    config = node.config
    error = ErrorCode.NONE
    if not request.group_id:
        error = ErrorCode.INVALID_GROUP_ID
    elif not config.group_min_session_timeout_ms <= request.session_timeout <= config.group_max_session_timeout_ms:
        error = ErrorCode.INVALID_SESSION_TIMEOUT
    else:
        error = node.groups.check(request.group_id)
    if error is not ErrorCode.NONE:
        return _values(context.version, JoinAnswer(error=error, member_id=request.member_id))
    instance_id = getattr(request, "group_instance_id", None)
    client_id = context.header.client_id or ""
    rebalance_timeout_ms = getattr(request, "rebalance_timeout", -1)
    answer = node.groups.ask(
        request.group_id,
        lambda token: Join(
            token=token,
            member_id=request.member_id,
            fresh_id=f"{(instance_id or client_id)[:NAME_CHARS_MAX]}-{uuid4()}",
            instance_id=instance_id,
            client_id=client_id,
            client_host=f"/{context.slot.peer.rpartition(':')[0]}",
            session_timeout_ms=request.session_timeout,
            rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else request.session_timeout,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            id_round_trip=context.version >= ID_ROUND_TRIP_FROM,
            skips_assignment=context.version >= SKIP_ASSIGNMENT_FROM,
        ),
        create=not request.member_id,
    )
    if answer is None:
        unknown = JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
        return _values(context.version, unknown)
    return _values(context.version, await answer)


def _values(version: int, answer: JoinAnswer) -> "Values":
    no_protocol = None if version >= NULL_PROTOCOL_FROM else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation if answer.error is ErrorCode.NONE else NO_GENERATION,
        "protocol_type": answer.protocol_type,
        "protocol_name": no_protocol if answer.protocol is None else answer.protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in answer.members
        ],
    }
