"""Whoever a connection acts for: `User:alice`, as Kafka's `KafkaPrincipal` is written."""

from dataclasses import dataclass
from typing import Self

USER = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """A type and a name. Broker, registry and tools share it; ACLs and `super.users` name it as `type:name`."""

    name: str
    kind: str = USER

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `User:alice`; raises ValueError for text of another form."""
        kind, colon, name = text.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"'{text}' is no principal: write it as User:name")
        return cls(name=name, kind=kind)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


# Of a connection that did not sign in.
ANONYMOUS = Principal("ANONYMOUS")
