"""RemoveRaftVoter: a voter of the metadata log votes no more (KIP-853)."""

from typing import TYPE_CHECKING, Any

from log_broker.core.raft.effects import RemoveVoter
from log_broker.core.raft.voters import ReplicaKey
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.quorum import as_directory_id

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: HasQuorum, context: "RequestContext", request: Any) -> "Values":
    if request.cluster_id not in {None, node.cluster_id}:
        return {"error_code": ErrorCode.INCONSISTENT_CLUSTER_ID, "error_message": None}
    key = ReplicaKey(request.voter_id, as_directory_id(request.voter_directory_id))
    try:
        await node.quorum.change_voters(lambda token: RemoveVoter(key, token))
    except BrokerError as error:
        return {"error_code": error.code, "error_message": str(error)}
    return {"error_code": ErrorCode.NONE, "error_message": None}
