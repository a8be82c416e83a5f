"""Where what is kept of passwords is looked up."""

from collections.abc import Mapping
from typing import Protocol

from log_broker.core.security.credentials import ScramCredential, ScramMechanism


class Users(Protocol):
    """The users that a node knows."""

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return what is kept of a user's password for one mechanism, None where there is nothing."""
        ...


class UserTable:
    """Users that stand in memory, by name and mechanism: those of a node's own settings."""

    def __init__(self, users: Mapping[tuple[str, ScramMechanism], ScramCredential]) -> None:
        self._users = users

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._users.get((name, mechanism))


class FirstOf:
    """
    Users of several places; where two know one name, the first place counts for all mechanisms of it.

    What another place keeps of that name would be a second password for it.
    """

    def __init__(self, *places: Users) -> None:
        self._places = places

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        for place in self._places:
            if any(place.scram(name, each) is not None for each in ScramMechanism):
                return place.scram(name, mechanism)
        return None
