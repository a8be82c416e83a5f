"""Where what is kept of passwords is looked up."""

from collections.abc import Callable, Mapping
from typing import Protocol

from log_broker.core.security.credentials import ScramCredential, ScramMechanism


class Users(Protocol):
    """The users that a node knows."""

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return what is kept of a user's password for one mechanism, None where there is nothing."""
        ...


class Nobody:
    """No users."""

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return None


class GivenUsers:
    """Users whose passwords stand in a node's own settings, such as the one by which nodes sign in to each other."""

    def __init__(
        self,
        passwords: Mapping[str, str],
        derive: Callable[[str, bytes, ScramMechanism], ScramCredential],
    ) -> None:
        """`derive` makes what is kept of a password: a user's name, the password, the mechanism."""
        self._passwords = dict(passwords)
        self._derive = derive

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        password = self._passwords.get(name)
        return None if password is None else self._derive(name, password.encode(), mechanism)


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
