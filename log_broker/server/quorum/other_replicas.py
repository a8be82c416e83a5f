"""
The quorum's other replicas: where they listen, and requests to them.
"""

import asyncio
import logging
from collections.abc import Callable

from log_broker.core.cluster.records import ClusterNamed, decode_all
from log_broker.core.raft.log import EntryKind
from log_broker.core.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    RaftResponse,
)
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import RaftConfig
from log_broker.core.raft.voters import Voter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dialing import Dialer
from log_broker.server.net.peers import PeerLink, Peers
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.wire import quorum as messages

_log = logging.getLogger(__name__)

CONFIRM_SECONDS_MAX = 1.0


class OtherReplicas:
    """Connections to the other replicas, by node id."""

    def __init__(
        self,
        own_endpoint: tuple[str, int],
        config: RaftConfig,
        cluster_id: Callable[[], str | None],
        find_voter: Callable[[int], Voter | None],
        *,
        broker_address: Callable[[int], str | None],
        dialer: Dialer,
    ) -> None:
        """`find_voter` gives a voter by its id, `broker_address` where a registered broker listens."""
        self._own_endpoint = own_endpoint
        self._config = config
        self._cluster_id = cluster_id
        self._find_voter = find_voter
        self._broker_address = broker_address
        self._endpoints: dict[int, tuple[str, int]] = {}  # as their answers say
        self.peers = Peers(self.address_of, dialer)
        self._refusals = RateLimitedLog(_log, asyncio.get_running_loop().time)

    def address_of(self, node_id: int) -> str | None:
        """Return where a replica listens, or another node that the cluster knows."""
        endpoint = self.endpoint_of(node_id)
        return self._broker_address(node_id) if endpoint is None else f"{endpoint[0]}:{endpoint[1]}"

    def endpoint_of(self, node_id: int) -> tuple[str, int] | None:
        """Return where a voter listens, or what another replica's answer said of a node."""
        voter = self._find_voter(node_id)
        return (voter.host, voter.port) if voter is not None and voter.host else self._endpoints.get(node_id)

    async def ask(self, to: int, body: RaftRequest) -> RaftResponse | None:
        """Send a request and return the answer, None where there is none."""
        asked = messages.question(body, cluster_id=self._cluster_id(), endpoint=self._own_endpoint)
        # A Fetch may wait, and no vote is to wait behind it.
        purpose = "quorum-fetch" if isinstance(body, FetchRequest | FetchSnapshotRequest) else "quorum"
        try:
            response = await self.peers.link(to, purpose).ask(
                asked.api,
                asked.version,
                asked.values,
                timeout_seconds=self._config.request_timeout_ms / 1000,
                # A leader takes a second fetch on a connection as proof that its answer to the first has arrived.
                alone=isinstance(body, FetchRequest),
            )
            answer = messages.read_answer(body, response)
        except BrokerError as error:
            if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                self._refusals.failed(
                    "this node is refused by node %d, which takes it for none of its cluster: its super.users are to "
                    "name the user as whom nodes sign in, which is User:ANONYMOUS where nobody asks for one",
                    to,
                )
            _log.debug("node %d did not answer %s: %s", to, asked.api.name, error)
            return None
        self._endpoints.update(answer.endpoints)
        return answer.body

    async def confirm(self, voter: Voter, epoch: int, leader_id: int) -> None:
        """Raise BrokerError unless the voter listens where it is said to: whoever reaches this port can say so."""
        body = BeginQuorumEpochRequest(epoch=epoch, leader_id=leader_id, voter=voter.key)
        asked = messages.question(body, cluster_id=self._cluster_id(), endpoint=self._own_endpoint)
        link = PeerLink(f"{voter.host}:{voter.port}", dialer=self.peers.dialer)
        try:
            response = await link.ask(asked.api, asked.version, asked.values, timeout_seconds=CONFIRM_SECONDS_MAX)
            answer = messages.read_answer(body, response).body
        finally:
            link.end()
        if answer.error is not ErrorCode.NONE:
            raise BrokerError(ErrorCode.INVALID_VOTER_KEY, f"voter {voter.key.node_id} is not at {link.address}")

    def close(self) -> None:
        self.peers.close()


def cluster_id_in_log(raft: Raft) -> str | None:
    """Return the id that the log gives the cluster in an entry that this replica does not know to be committed."""
    for entry in raft.replica.log.between(raft.replica.high_watermark, raft.replica.log.end_offset):
        if entry.kind is EntryKind.DATA:
            named = (record for record in decode_all(entry.data) if isinstance(record, ClusterNamed))
            if (first := next(named, None)) is not None:
                return first.cluster_id
    return None
