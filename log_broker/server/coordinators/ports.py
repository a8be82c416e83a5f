"""What handlers ask of the coordinators."""

from typing import Protocol

from log_broker.server.coordinators.groups import GroupCoordinator
from log_broker.server.coordinators.transactions import TransactionCoordinator


class HasGroups(Protocol):
    """A node that coordinates groups."""

    @property
    def groups(self) -> GroupCoordinator: ...


class HasTransactions(Protocol):
    """A node that coordinates transactions."""

    @property
    def transactions(self) -> TransactionCoordinator: ...
