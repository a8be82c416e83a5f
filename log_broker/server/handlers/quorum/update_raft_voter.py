"""UpdateRaftVoter: a voter of the metadata log listens elsewhere than its quorum knows (KIP-853)."""

from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.quorum import read_voter

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: HasQuorum, context: "RequestContext", request: Any) -> "Values":
    # Only nodes ask for this, and they know their cluster.
    if request.cluster_id != node.cluster_id:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID}
    try:
        await node.quorum.move_voter(read_voter(request))
    except BrokerError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.NONE}
