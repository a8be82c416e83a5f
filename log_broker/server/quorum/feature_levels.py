"""What the nodes of the cluster support, of those whose registration does not tell: they are asked."""

import asyncio
import logging
from typing import Protocol

from log_broker.core.cluster.feature_updates import Answered, Nodes, unknown_nodes
from log_broker.core.cluster.features import ranges_of
from log_broker.errors import BrokerError
from log_broker.server.net.ports import HasPeers
from log_broker.server.process.ports import Cluster, HasFeatures
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.apis import ApiKey

_log = logging.getLogger(__name__)

ASK_SECONDS_MAX = 4.0
ASK_VERSION = 4  # earlier ones leave out features that begin at 0
_LINK = "features"


class LevelsHost(Cluster, HasFeatures, HasPeers, HasQuorum, Protocol):
    """What asking the nodes for their levels asks of this one."""


async def nodes_of(node: LevelsHost) -> Nodes:
    """Return whose word counts for a feature level; who does not answer is left out of the answers."""
    voters = tuple(voter.key.node_id for voter in node.quorum.voters)
    asked = [each for each in unknown_nodes(node.cluster, voters) if each != node.static_config.node_id]
    incarnations = {node_id: broker.incarnation for node_id, broker in node.cluster.brokers.items()}
    own_id = node.static_config.node_id
    answered = {own_id: Answered(node.features, incarnations.get(own_id, ""))}
    for node_id, answer in zip(asked, await asyncio.gather(*(_ask(node, each) for each in asked)), strict=True):
        if answer is not None:
            answered[node_id] = Answered(ranges_of(answer), incarnations.get(node_id, ""))
    return Nodes(own_id, voters, answered)


async def _ask(node: LevelsHost, node_id: int) -> list[tuple[str, int, int]] | None:
    values = {"client_software_name": "fluvial", "client_software_version": "0"}
    peers = node.peers if node_id in node.cluster.brokers else node.controllers
    try:
        link = peers.link(node_id, _LINK)
        answer = await link.ask(ApiKey.API_VERSIONS, ASK_VERSION, values, timeout_seconds=ASK_SECONDS_MAX)
    except BrokerError as error:
        _log.info("node %d was not asked which feature levels it supports: %s", node_id, error)
        return None
    return [(each.name, each.min_version, each.max_version) for each in answer.supported_features]
