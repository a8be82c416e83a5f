"""What other parts of a server ask of its connections."""

from typing import Protocol

from log_broker.server.net.memory_budget import MemoryBudget
from log_broker.server.net.peers import Peers


class HasPeers(Protocol):
    """A node that asks others."""

    @property
    def peers(self) -> Peers: ...

    @property
    def controllers(self) -> Peers:
        """Those that may be controllers, as such; the same where they have no listener of their own."""
        ...


class HasMemory(Protocol):
    """A node whose requests and answers have a budget."""

    @property
    def memory(self) -> MemoryBudget: ...
