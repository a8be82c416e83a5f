"""FetchSnapshot: a replica of the metadata log needs its snapshot."""

from typing import TYPE_CHECKING, Any

from log_broker.server.quorum.ports import HasQuorum

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

PART_BYTES = 1024 * 1024  # as RaftConfig.snapshot_part_bytes


async def handle(node: HasQuorum, context: "RequestContext", request: Any) -> "Values":
    # Counted before there is an answer: many parts may be asked for in one turn of the event loop.
    context.slot.hold(PART_BYTES)
    return await node.quorum.answer(context.header.api_key, request)
