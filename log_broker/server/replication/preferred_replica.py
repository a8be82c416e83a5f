"""
Which replica a consumer is to read from: Kafka's RackAwareReplicaSelector (KIP-392).

One in the client's rack that is up, in sync and has the offset; of several the one that is furthest. The leader itself
if it is in that rack, or if nobody is. A replica out of sync may stay behind for ever, and the client there with it.
"""

from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster

NO_REPLICA = -1


def preferred_replica(node: Cluster, leader: PartitionRuntime, rack: bytes, offset: int) -> int:
    """Return the node to read from instead of this one, which leads; NO_REPLICA to read here."""
    wanted = rack.decode(errors="replace")
    brokers = node.cluster.brokers
    own = brokers.get(node.config.node_id)
    if own is None or own.rack == wanted:
        return NO_REPLICA
    best, best_end = NO_REPLICA, -1
    in_sync = leader.leading.isr
    for node_id, follower in leader.leading.followers.items():
        if node_id not in in_sync:
            continue
        broker = brokers.get(node_id)
        if broker is None or broker.is_fenced or broker.rack != wanted:
            continue
        if follower.log_start_offset <= offset <= follower.end and follower.end > best_end:
            best, best_end = node_id, follower.end
    return best
