"""
What a mechanism of sign-in is to whoever drives it: bytes in, a step out.

An exchange belongs to one attempt on one connection. It is fed what the client sends until it has a principal or
raises; what comes after that is not for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from log_broker.core.security.principal import Principal


class SignInError(Exception):
    """Somebody could not be signed in. The text is for the broker's log; the client hears one text for all reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The client has more to say once it has been sent `data`."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """The client is `principal`; `data` is the last that it is sent. It holds for `lifetime_ms`, None for ever."""

    principal: Principal
    data: bytes = b""
    lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """What takes milliseconds of a processor and belongs in a thread; `work` raises SignInError."""

    work: Callable[[], SignedIn]


Step = Challenge | SignedIn | Check


class Exchange(Protocol):
    """One attempt to sign in by one mechanism."""

    def step(self, data: bytes) -> Step:
        """Take what the client sent; raises SignInError."""
        ...


# By the mechanism's name, as clients send it.
Mechanisms = dict[str, Callable[[], Exchange]]
