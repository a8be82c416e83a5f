"""AddRaftVoter: make a node that follows the metadata log one of its voters (KIP-853)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.raft_effects import AddVoter
from log_broker.core.raft_voters import ReplicaKey, Voter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.wire.quorum import as_directory_id

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    if request.cluster_id not in {None, node.cluster_id}:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID, "error_message": None}
    if not request.listeners:
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": "A voter needs an address."}
    listener = request.listeners[0]
    key = ReplicaKey(request.voter_id, as_directory_id(request.voter_directory_id))
    voter = Voter(key=key, host=listener.host, port=listener.port)
    try:
        await node.quorum.change_voters(lambda token: AddVoter(voter, token))
    except BrokerError as error:
        return {"error_code": error.code, "error_message": str(error)}
    return {"error_code": ErrorCode.NONE, "error_message": None}
