"""BrokerHeartbeat: a node of the cluster is alive, or wants to stop."""

from functools import partial
from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.broker_registry import Heartbeat, HeartbeatAnswer
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.controller import Controller, HasController, active_controller

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import Later, RequestContext, Values


def handle(node: HasController, context: "RequestContext", request: Any) -> "Values | Later":
    beat = Heartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        wants_shut_down=request.want_shut_down,
        wants_fence=request.want_fence,
        # A broker has one directory.
        takes_writes=not getattr(request, "offline_log_dirs", ()),
    )
    try:
        controller = active_controller(node)
        answer = controller.heard_of(beat)
    except BrokerError as error:
        return _refused(error)
    return partial(_decided, controller, beat) if answer.records else _written(answer)


async def _decided(controller: Controller, beat: Heartbeat) -> "Values":
    try:
        return _written(await controller.heartbeat(beat))
    except BrokerError as error:
        return _refused(error)


def _refused(error: BrokerError) -> "Values":
    return {"error_code": error.code, "should_shut_down": False}


def _written(answer: HeartbeatAnswer) -> "Values":
    return {
        "error_code": ErrorCode.NONE,
        "is_caught_up": answer.is_caught_up,
        "is_fenced": answer.is_fenced,
        "should_shut_down": answer.should_shut_down,
    }
