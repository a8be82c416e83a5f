"""What other parts of a server ask of the metadata quorum and its active controller."""

from typing import Protocol

from log_broker.server.quorum.authority import Authority
from log_broker.server.quorum.producer_ids import ProducerIds
from log_broker.server.quorum.quorum import Quorum


class HasAuthority(Protocol):
    """A node that decides, or has the active controller decide."""

    @property
    def authority(self) -> Authority: ...


class HasQuorum(Protocol):
    """A node with a replica of the metadata log."""

    @property
    def quorum(self) -> Quorum: ...

    @property
    def cluster_id(self) -> str: ...


class HasProducerIds(Protocol):
    """A node that hands out producer ids."""

    @property
    def producer_ids(self) -> ProducerIds: ...
