"""
Who asks an HTTP server of a node: a user of the cluster with its password (HTTP Basic), or whom a certificate names.

The users and the rules for certificates are those of the brokers. What carries a password that is wrong is answered
after `connection.failed.authentication.delay.ms`.
"""

import asyncio
import base64
import binascii

from log_broker.core.security.http_listeners import HttpListener
from log_broker.core.security.mechanism import Check, SignInError
from log_broker.core.security.plain import PlainPasswords
from log_broker.core.security.principal import ANONYMOUS, Principal
from log_broker.server.net.sign_in import SignInHost, SignInService
from log_broker.server.net.tls import principal_of

NAME_BYTES_MAX = 1024
PASSWORD_BYTES_MAX = 4096
_ANONYMOUS_NAME = ANONYMOUS.name


class HttpSignIn:
    """Tells who sends a request to one HTTP server; used in the node's event loop. `close` it at the end."""

    def __init__(self, node: SignInHost, listener: HttpListener) -> None:
        self.listener = listener
        self._node = node
        self._service = SignInService(node)
        self._passwords: PlainPasswords = self._service.passwords(listener.users)

    async def principal(self, authorization: str | None, certificate: dict[str, object] | None) -> Principal:
        """
        Return who sends a request with this header over a connection with this certificate, each None for none.

        A password speaks before a certificate. Raises SignInError, and UsersUnknownError while the node is starting.
        """
        if self.listener.protocol.signs_in and authorization is not None:
            return await self._counted(*read_basic(authorization))
        if self.listener.tls is not None and certificate:
            try:
                return principal_of(self.listener.tls, certificate)
            except ValueError as error:
                raise SignInError(str(error)) from None
        if self.listener.protocol.signs_in:
            raise SignInError("neither a password nor a certificate")
        return ANONYMOUS

    def knows(self, name: str) -> bool:
        """Whether the cluster, or the settings, have a user of this name."""
        return self._passwords.knows(name)

    async def refused(self, peer: str, reason: str) -> None:
        """Tell of a refusal, and return when it may be answered."""
        self._service.counters.sign_ins_refused += 1
        self._service.trouble.failed("%s may not use %s: %s", peer, self.listener.name, reason)
        await asyncio.sleep(self.listener.failure_delay_ms / 1000)

    def close(self) -> None:
        """End the thread of passwords."""
        self._service.close()

    async def _counted(self, name: str, password: bytes) -> Principal:
        found = self._passwords.check(name, password)
        if isinstance(found, Check):
            found = await self._service.check(found)
        self._service.counters.sign_ins += 1
        return found.principal


def read_basic(authorization: str) -> tuple[str, bytes]:
    """Return the name and password of an `Authorization` header (RFC 7617); raises SignInError."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise SignInError(f"Authorization by {scheme[:20]!r} is not known")
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        text = name.decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise SignInError("the Authorization header cannot be read") from None
    if not colon or not text or not password or len(name) > NAME_BYTES_MAX or len(password) > PASSWORD_BYTES_MAX:
        raise SignInError("the Authorization header holds no name and password")
    if text == _ANONYMOUS_NAME:
        raise SignInError(f"nobody can sign in as {text}")
    return text, password
