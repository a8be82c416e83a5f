"""
Who leads instead: what Produce and Fetch tell a client that came to the wrong node, sparing it a Metadata (KIP-951).
"""

from collections.abc import Iterable

from log_broker.errors import ErrorCode
from log_broker.server.process.ports import Cluster
from log_broker.wire.leader_tags import NodeEndpoint

WRONG_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def current_leader(node: Cluster, topic: str, partition: int) -> tuple[int, int] | None:
    """Return (node id, leader epoch) of the leader, None where there is no such partition."""
    image = node.cluster.topics.get(topic)
    if image is None or not 0 <= partition < len(image.partitions):
        return None
    found = image.partitions[partition]
    return found.leader, found.leader_epoch


def endpoints_of(node: Cluster, leaders: Iterable[tuple[int, int] | None], listener: str) -> list[NodeEndpoint]:
    """Return where clients of a listener reach those that lead, each once."""
    brokers = node.cluster.brokers
    ids = {leader[0] for leader in leaders if leader is not None}
    found = (brokers[node_id] for node_id in sorted(ids) if node_id in brokers)
    return [
        NodeEndpoint(broker.node_id, *endpoint, broker.rack)
        for broker in found
        if (endpoint := broker.endpoint(listener)) is not None
    ]
