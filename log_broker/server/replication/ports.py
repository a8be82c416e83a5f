"""What other parts of a server ask of the replicas that a node has."""

from typing import Protocol

from log_broker.server.replication.manager import ReplicaManager


class HasReplicas(Protocol):
    """A node with replicas of partitions."""

    @property
    def replicas(self) -> ReplicaManager: ...
