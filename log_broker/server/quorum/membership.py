"""
Tells the metadata quorum where this voter listens now (KIP-853): the others may know it at another address.

Asked once a process; the leader writes nothing where nothing has changed.
"""

import asyncio
import logging
from typing import Protocol

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.ports import HasAddress
from log_broker.server.quorum.ports import HasAuthority, HasQuorum
from log_broker.wire.apis import ApiKey
from log_broker.wire.quorum import LISTENER, as_uuid

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class MemberHost(HasAddress, HasAuthority, HasQuorum, Protocol):
    """What telling the quorum asks of the node."""


async def tell_address(node: MemberHost) -> None:
    """Return when the quorum knows where this node listens, or that it is no voter of it."""
    quorum = node.quorum
    if not quorum.is_voter or len(quorum.voters) == 1:
        return
    host, port = node.controller_endpoint
    while True:
        values = {
            "cluster_id": node.cluster_id or None,
            "current_leader_epoch": quorum.epoch,
            "voter_id": quorum.key.node_id,
            "voter_directory_id": as_uuid(quorum.key.directory_id),
            "listeners": ({"name": LISTENER, "host": host, "port": port},),
            "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        }
        try:
            answer = await node.authority.ask_controller(ApiKey.UPDATE_RAFT_VOTER, 0, values)
            error = ErrorCode(answer.error_code)
        except BrokerError as failure:
            error = failure.code
        if error in {ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND}:
            return
        _log.info("the quorum was not told where this voter listens: %s", error.name)
        await asyncio.sleep(RETRY_SECONDS)
