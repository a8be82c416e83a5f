"""Who may change what: the one place where the registry asks before it acts."""

from dataclasses import dataclass
from typing import Literal, Protocol

Action = Literal["register", "delete", "configure", "set_mode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who sends a request, as far as is known; `name` is None for a caller that did not say."""

    name: str | None


ANYONE = Principal(name=None)


class Policy(Protocol):
    """Decides about every change to a subject; `subject` is None for settings that hold for all."""

    def authorize(self, principal: Principal, subject: str | None, action: Action) -> str | None:
        """Return why `principal` may not do this, naming who may, or None when it may."""
        ...


class OpenPolicy:
    """Everyone may do everything: what holds while no owner claims a subject."""

    def authorize(self, principal: Principal, subject: str | None, action: Action) -> str | None:
        """Allow it."""
        return None
