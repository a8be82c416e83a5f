"""BeginQuorumEpoch: the leader of the metadata quorum says that it leads."""

from typing import TYPE_CHECKING, Any

from log_broker.server.quorum.ports import HasQuorum

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: HasQuorum, context: "RequestContext", request: Any) -> "Values":
    return await node.quorum.answer(context.header.api_key, request)
