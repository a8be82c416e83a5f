"""
Who sends a request: HTTP Basic, held against the producers' hashed passwords.

Passwords are hashed by scrypt, whose cost is the point; so it runs in a thread, few at once, and a password that was
right is remembered by a keyed digest for as long as its hash stands.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections import OrderedDict

from fluvial.registry import errors
from fluvial.registry.model.ownership import Ownership, Producer
from fluvial.registry.service.policy import ANYONE
from log_broker.core.security.principal import Principal

PASSWORD_CHARACTERS_MIN = 12
"""The hashes can be read by whoever reads `_schemas`; a shorter password could be found out from its hash."""

PASSWORD_CHARACTERS_MAX = 1_000
NAME_CHARACTERS_MAX = 200

_COST = 1 << 14
_BLOCK = 8
_LANES = 1
_MEMORY_BYTES_MAX = 64 << 20
_SALT_BYTES = 16
_AT_ONCE_MAX = 2
_REMEMBERED_MAX = 1_000


def hash_password(password: str) -> str:
    """Hash a password with a salt of its own: `scrypt$cost$block$lanes$salt$hash`."""
    salt = os.urandom(_SALT_BYTES)
    digest = _scrypt(password, salt, _COST, _BLOCK, _LANES)
    return "$".join(["scrypt", str(_COST), str(_BLOCK), str(_LANES), salt.hex(), digest.hex()])


NO_PASSWORD = "user$$"  # noqa: S105 a hash of no kind
"""In the place of a hash, for producers that are users of the cluster: no password fits it."""


def verify_password(password: str, hashed: str) -> bool:
    """Whether `hashed` was made from this password."""
    kind, *numbers, salt, digest = hashed.split("$")
    if kind != "scrypt":
        return False
    cost, block, lanes = map(int, numbers)
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt), cost, block, lanes), bytes.fromhex(digest))


def _scrypt(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    text = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=cost, r=block, p=lanes, maxmem=_MEMORY_BYTES_MAX, dklen=32)


def read_basic(header: str | None) -> tuple[str, str] | None:
    """
    The name and password of an `Authorization` header, None where there is none.

    Raises `RefusedError` for a header of another form.
    """
    if header is None:
        return None
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise errors.unauthorized(f"Authorization by {scheme[:20]} is not known here; send HTTP Basic")
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon or not name or len(name) > NAME_CHARACTERS_MAX or len(password) > PASSWORD_CHARACTERS_MAX:
        raise errors.unauthorized("The Authorization header holds no name and password")
    return name, password


class Authenticator:
    """Tells who a name and password belong to."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._digest_key = secrets.token_bytes(32)  # so that what is remembered is of no use elsewhere
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._at_once = asyncio.Semaphore(_AT_ONCE_MAX)

    async def principal(self, header: str | None) -> Principal:
        """Return who sends an `Authorization` header; raises `RefusedError` for one that is wrong."""
        given = read_basic(header)
        if given is None:
            return ANYONE
        name, password = given
        known = self._ownership.producer(name)
        if known is None:
            raise errors.unauthorized(f"No producer {name!r} is known here; it is introduced when it claims a subject")
        if not await self.is_right(known, password):
            raise errors.unauthorized(f"The password of {name!r} is another one")
        return Principal(name=name)

    async def shows(self, name: str, password: str) -> bool:
        """Whether there is a producer of this name, and this is its password."""
        known = self._ownership.producer(name)
        return known is not None and await self.is_right(known, password)

    async def is_right(self, producer: Producer, password: str) -> bool:
        """Whether this is the producer's password."""
        text = f"{producer.password}\0{password}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._digest_key, text, "sha256")
        if digest in self._right:
            self._right.move_to_end(digest)
            return True
        async with self._at_once:
            right = await asyncio.to_thread(verify_password, password, producer.password)
        if right:
            self._right[digest] = None
            if len(self._right) > _REMEMBERED_MAX:
                self._right.popitem(last=False)
        return right

    async def hashed(self, password: str) -> str:
        """Hash a new password."""
        async with self._at_once:
            return await asyncio.to_thread(hash_password, password)
