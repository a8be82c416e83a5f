"""BeginQuorumEpoch: the leader of the metadata quorum says that it leads."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    return await node.quorum.answer(context.header.api_key, request)
