"""What a broker keeps of a user's password (RFC 5802)."""

from dataclasses import dataclass, field
from enum import StrEnum


class ScramMechanism(StrEnum):
    """The mechanisms by which users sign in with a password that never crosses the wire."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The keys derived from a password; neither it nor what would sign in with it can be had from them."""

    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int
