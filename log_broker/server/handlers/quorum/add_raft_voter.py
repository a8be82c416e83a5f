"""AddRaftVoter: make a node that follows the metadata log one of its voters (KIP-853)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.raft.effects import AddVoter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.quorum import read_voter

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: HasQuorum, context: "RequestContext", request: Any) -> "Values":
    if request.cluster_id not in {None, node.cluster_id}:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID, "error_message": None}
    try:
        voter = read_voter(request)
        await node.quorum.change_voters(lambda token: AddVoter(voter, token))
    except BrokerError as error:
        return {"error_code": error.code, "error_message": str(error)}
    return {"error_code": ErrorCode.NONE, "error_message": None}
