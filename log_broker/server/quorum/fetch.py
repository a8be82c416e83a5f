"""Fetch of the metadata log by a replica of it: the one Fetch that the metadata quorum answers, not the logs."""

from typing import TYPE_CHECKING, Any

from log_broker.server.net.dispatch import control
from log_broker.server.quorum.ports import HasQuorum

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def _handle(node: HasQuorum, context: "RequestContext", request: Any) -> "Values":
    return await node.quorum.answer(context.header.api_key, request, link=context.slot.peer)


fetch_metadata = control(_handle)
