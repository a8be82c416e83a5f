"""UpdateRaftVoter: a voter of the metadata log listens elsewhere than its quorum knows (KIP-853)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.raft_effects import UpdateVoter
from log_broker.core.raft_voters import ReplicaKey, Voter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.wire.quorum import as_directory_id

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext, Values
    from log_broker.server.node import Node


async def handle(node: "Node", context: "RequestContext", request: Any) -> "Values":
    if request.cluster_id not in {None, node.cluster_id}:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID}
    if not request.listeners:
        return {"error_code": ErrorCode.INVALID_REQUEST}
    listener = request.listeners[0]
    key = ReplicaKey(request.voter_id, as_directory_id(request.voter_directory_id))
    voter = Voter(key=key, host=listener.host, port=listener.port)
    try:
        await node.quorum.change_voters(lambda token: UpdateVoter(voter, token))
    except BrokerError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.NONE}
