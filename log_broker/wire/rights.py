"""What an api asks of whoever sends it: the column of rights in the table of apis (KIP-11)."""

from dataclasses import dataclass
from enum import Enum

from log_broker.core.security.acls import Operation, ResourceType


class Checked(Enum):
    """Where a right is looked at."""

    CLUSTER = "the whole request is about the cluster"
    FIELD = "a field of the request names the resource, and the whole request is refused"
    EACH = "each entry of an array names one, and is refused alone"
    INSIDE = "the module of the handler has a `guard` for what is not as regular, or reads the request itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRight:
    """
    One right. Any one of `operations` will do.

    `path` is the field, or the array and behind a dot its entries' field, that names the resource.
    """

    resource: ResourceType
    operations: tuple[Operation, ...]
    checked: Checked
    path: str = ""

    def __str__(self) -> str:
        return f"{self.resource.name}/{' or '.join(operation.name for operation in self.operations)}"


AskedRights = tuple[AskedRight, ...]

NOTHING: AskedRights = ()  # of what is answered to anybody


def on_cluster(*operations: Operation) -> AskedRight:
    """A right on the cluster."""
    return AskedRight(resource=ResourceType.CLUSTER, operations=operations, checked=Checked.CLUSTER)


def on_field(resource: ResourceType, operation: Operation, path: str) -> AskedRight:
    """A right on what a field names; where that is null none is asked for."""
    return AskedRight(resource=resource, operations=(operation,), checked=Checked.FIELD, path=path)


def on_each(resource: ResourceType, operation: Operation, path: str) -> AskedRight:
    """A right on each entry of an array."""
    return AskedRight(resource=resource, operations=(operation,), checked=Checked.EACH, path=path)


def inside(resource: ResourceType, *operations: Operation) -> AskedRight:
    """A right that the handler's own module looks at."""
    return AskedRight(resource=resource, operations=operations, checked=Checked.INSIDE)
