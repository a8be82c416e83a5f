"""What other parts of a server ask of the partitions that a node has."""

from typing import Protocol

from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import ErrorCode
from log_broker.server.partitions.log_manager import LogManager


class Partitions(Protocol):
    """The partitions that have a replica on this node."""

    @property
    def logs(self) -> LogManager: ...

    def absence_of(self, topic: str, partition: int) -> ErrorCode:
        """Say why `logs` has no such partition, or does not lead it."""
        ...


class EnsuresTopics(Protocol):
    """Makes topics on first use."""

    async def ensure_topic(self, command: CreateTopic) -> None:
        """Make a topic if it is not there; raises BrokerError. Many may ask at once, one request is made."""
        ...
