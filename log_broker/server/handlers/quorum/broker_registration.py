"""BrokerRegistration: a node of the cluster came up."""

from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from log_broker.core.cluster.broker_registry import UNKNOWN_EPOCH, Registration
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.controller import HasController, active_controller
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.quorum import is_address

FEATURES_MAX = 100
LISTENERS_MAX = 20
NAME_LENGTH_MAX = 255

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


class _Host(HasController, HasQuorum, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    if request.cluster_id != node.cluster_id:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID}
    if not _is_sound(request):
        return {"error_code": ErrorCode.INVALID_REQUEST}
    listener = request.listeners[0]
    directories: tuple[UUID | None, ...] = getattr(request, "log_dirs", ())
    wanted = Registration(
        request.broker_id,
        listener.host,
        listener.port,
        request.incarnation_id.hex if request.incarnation_id else "",
        rack=request.rack,
        directory=directories[0].hex if directories and directories[0] else "",
        previous_epoch=getattr(request, "previous_broker_epoch", UNKNOWN_EPOCH),
        listeners=tuple((each.name, each.host, each.port, each.security_protocol) for each in request.listeners),
        features=tuple(
            (each.name, each.min_supported_version, each.max_supported_version) for each in request.features
        ),
    )
    try:
        epoch = await active_controller(node).register(wanted)
    except BrokerError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.NONE, "broker_epoch": epoch}


def _is_sound(request: Any) -> bool:
    """Whether what a broker says of itself is of a size that all nodes can keep."""
    if request.broker_id < 0 or not 0 < len(request.listeners) <= LISTENERS_MAX or len(request.features) > FEATURES_MAX:
        return False
    names = (request.rack or "", *(each.name for each in (*request.features, *request.listeners)))
    return all(is_address(each.host, each.port) for each in request.listeners) and all(
        len(name) <= NAME_LENGTH_MAX for name in names
    )
