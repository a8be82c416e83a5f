"""
How a node connects to another: in plain text, or as the listener asks by which nodes reach each other.

Whoever connects gets a connection that may be spoken on; TLS and sign-in are done by then. A node that is refused says
so in its log, now and then, for its operator has to mend that.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.listeners import Account, ListenerConfig
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.plain import PLAIN
from log_broker.core.security.scram import ScramClient
from log_broker.errors import ErrorCode
from log_broker.server.net.tls import TlsContext
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

_log = logging.getLogger(__name__)

P = TypeVar("P", bound=asyncio.BaseProtocol)

SIGN_IN_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 64 * 1024
REFUSALS_KEPT_MAX = 1000  # addresses of which it is remembered when they refused
_NONCE_BYTES = 24
_CLIENT_ID = "broker"
# Who signs in by version 0 is not asked to do so again.
_AUTHENTICATE_VERSION = 0


class Dialer(Protocol):
    """Connects to other nodes."""

    async def connect(self, made: Callable[[], P], host: str, port: int) -> P:
        """Return the protocol that `made` gives, connected; raises OSError."""
        ...


class PlainDialer:
    """Connects in plain text."""

    async def connect(self, made: Callable[[], P], host: str, port: int) -> P:
        _, protocol = await asyncio.get_running_loop().create_connection(made, host, port)
        return protocol


PLAIN_DIALER: Dialer = PlainDialer()


def dialer_of(listener: ListenerConfig, account: Account | None, clock: Callable[[], float]) -> Dialer:
    """Return what connects to such a listener of nodes; raises BrokerError(INVALID_CONFIG) for certificates."""
    tls = listener.tls
    if tls is None and account is None:
        return PLAIN_DIALER
    return SecureDialer(None if tls is None else TlsContext(tls, is_server=False, clock=clock), account, clock)


async def open_streams(dialer: Dialer, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as `asyncio.open_connection` does; raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = await dialer.connect(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), host, port)
    transport = cast(asyncio.WriteTransport, reader._transport)  # type: ignore[attr-defined]
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class SecureDialer:
    """Connects with TLS, or signs in, or both."""

    def __init__(self, tls: TlsContext | None, account: Account | None, clock: Callable[[], float]) -> None:
        self._tls = tls
        self._account = account
        self._clock = clock
        self._refusals: dict[tuple[str, int], RateLimitedLog] = {}

    async def connect(self, made: Callable[[], P], host: str, port: int) -> P:
        """Return the protocol that `made` gives, connected and let in; raises OSError."""
        try:
            protocol = await self._connect(made, host, port)
        except (ssl.SSLError, SignInError) as error:
            reason = f"TLS failed: {_reason(error)}" if isinstance(error, ssl.SSLError) else str(error)
            self._refusal(host, port).failed("this node is refused by the one at %s:%d: %s", host, port, reason)
            raise ConnectionAbortedError(reason) from error
        if (host, port) in self._refusals:
            self._refusals.pop((host, port)).recovered("this node is let in by the one at %s:%d again", host, port)
        return protocol

    async def _connect(self, made: Callable[[], P], host: str, port: int) -> P:
        loop = asyncio.get_running_loop()
        transport, talk = await loop.create_connection(_Talk, host, port)
        try:
            async with asyncio.timeout(SIGN_IN_SECONDS_MAX):
                if self._tls is not None:
                    # `create_connection` with TLS, when cancelled, would close in order and wait for the other node.
                    transport = await _encrypted(transport, talk, self._tls.current(), host)
                if self._account is not None:
                    await _sign_in(talk, self._account)
        except BaseException:
            transport.abort()
            raise
        protocol = made()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return protocol

    def _refusal(self, host: str, port: int) -> RateLimitedLog:
        if len(self._refusals) >= REFUSALS_KEPT_MAX:
            self._refusals.clear()
        return self._refusals.setdefault((host, port), RateLimitedLog(_log, self._clock))


def _reason(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", "") or error.reason or str(error)


async def _encrypted(plain: asyncio.Transport, talk: "_Talk", context: ssl.SSLContext, host: str) -> asyncio.Transport:
    transport = await asyncio.get_running_loop().start_tls(plain, talk, context, server_hostname=host)
    if transport is None:
        raise ConnectionAbortedError("the connection was closed while TLS was begun")
    talk.connection_made(transport)
    return transport


async def _sign_in(talk: "_Talk", account: Account) -> None:
    """Raises SignInError for a refusal and OSError for a connection that breaks."""
    answer = await talk.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": account.mechanism})
    if answer.error_code:
        enabled = ", ".join(answer.mechanisms)
        raise SignInError(f"{account.mechanism} is not enabled there, but {enabled or 'nothing that this node knows'}")
    password = account.password.encode()
    if account.mechanism == PLAIN:
        await talk.token(b"\0".join((b"", account.name.encode(), password)))
        return
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    client = ScramClient(ScramMechanism(account.mechanism), account.name, password, nonce=nonce)
    challenge = await talk.token(client.first())
    # Some milliseconds of a processor.
    final = await asyncio.to_thread(client.final, challenge)
    client.verify(await talk.token(final))


class _Talk(asyncio.Protocol):
    """A connection on which one request after the other is answered."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionAbortedError("the connection was closed while signing in"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        length = int.from_bytes(self._received[:4], "big")
        if len(self._received) >= 4 and length > ANSWER_BYTES_MAX and self._transport is not None:
            self._transport.abort()
        elif len(self._received) >= 4 + length and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(self._received[4 : 4 + length]))
            del self._received[: 4 + length]

    async def ask(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """Send a request and return its answer; raises OSError."""
        if self._is_lost or self._transport is None:
            raise ConnectionAbortedError("the connection was closed while signing in")
        request = write_request(api, version, 0, _CLIENT_ID, values)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(len(request).to_bytes(4, "big") + request)
        return read_response(api, version, memoryview(await self._answer)[4:])

    async def token(self, data: bytes) -> bytes:
        """Send a message of the mechanism and return the answer to it; raises SignInError and OSError."""
        answer = await self.ask(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": data})
        if answer.error_code:
            raise SignInError(f"{ErrorCode(answer.error_code).name}: {answer.error_message}")
        return bytes(answer.auth_bytes)
