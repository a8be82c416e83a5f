"""
Why this node has no replica of a partition, or does not lead it.
"""

from typing import Protocol

from log_broker.errors import ErrorCode
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.process.ports import Cluster
from log_broker.server.replication.manager import ReplicaManager


class AbsenceHost(Cluster, Protocol):
    """What is asked of the node here."""

    @property
    def logs(self) -> LogManager: ...

    @property
    def replicas(self) -> ReplicaManager: ...


def absence_of(node: AbsenceHost, topic: str, partition: int) -> ErrorCode:
    """Say why `logs` has no such partition, or does not lead it."""
    image = node.cluster.topics.get(topic)
    if image is None or not 0 <= partition < len(image.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_absent = node.logs.get(topic, partition) is None and not node.replicas.is_due(topic, partition)
    if image.partitions[partition].leader == node.config.node_id and is_absent:
        return ErrorCode.KAFKA_STORAGE_ERROR  # it could not be made; the log said why
    return ErrorCode.NOT_LEADER_OR_FOLLOWER
