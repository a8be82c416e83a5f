"""Envelope: another node passes on what a client asked it and only the controller decides (KIP-590)."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.server.net.dispatch import DispatchHost, answer_here

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: DispatchHost, context: "RequestContext", request: Any) -> "Values":
    peer = request.client_host_address.decode("utf-8", "replace")
    return {"error_code": ErrorCode.NONE, "response_data": await answer_here(node, request.request_data, peer)}
