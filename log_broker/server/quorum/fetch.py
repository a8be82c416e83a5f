"""Fetch of the metadata log by a replica of it: the one Fetch that the metadata quorum answers, not the logs."""

from typing import TYPE_CHECKING, Any

from log_broker.server.net.dispatch import control

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def _handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return await node.quorum.answer(context.header.api_key, request, link=context.slot.peer)


fetch_metadata = control(_handle)
