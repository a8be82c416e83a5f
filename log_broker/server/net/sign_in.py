"""
A connection before it is let in: nothing that it sends reaches a handler but ApiVersions and sign-in itself.

A `SignIn` is the protocol of a socket until a principal is known; then a `Connection` takes its place, with a `Session`
by which it may sign in again. Connections of listeners without sign-in never see any of it.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol, cast

from log_broker.config.broker import BrokerConfig
from log_broker.core.security.credentials import ScramCredential, ScramMechanism
from log_broker.core.security.listeners import SaslConfig
from log_broker.core.security.mechanism import Check, Mechanisms, SignedIn
from log_broker.core.security.plain import PLAIN, PlainExchange, PlainPasswords
from log_broker.core.security.principal import ANONYMOUS, Principal
from log_broker.core.security.sasl import Reply, Sasl, State
from log_broker.core.security.scram import ITERATIONS_MIN, ScramExchange, credential_of, fake_credential
from log_broker.core.security.users import FirstOf, GivenUsers, Users
from log_broker.errors import ErrorCode
from log_broker.server.net.dispatch import DispatchHost, dispatch
from log_broker.server.net.half_open import HalfOpen
from log_broker.server.net.slots import Slot
from log_broker.server.process.counters import Counters
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import read_request, write_refusal, write_response
from log_broker.wire.framing import LENGTH_BYTES, RequestHeader, read_header
from log_broker.wire.reading import MalformedRequestError

_log = logging.getLogger(__name__)

REQUESTS_MAX = 16  # of one connection before it is signed in
NONCE_BYTES = 24
_SIGNING_IN = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

Values = dict[str, Any]


class UsersUnknownError(Exception):
    """A node that is starting cannot say yet who its cluster's users are."""


class SignInHost(DispatchHost, Protocol):
    """What sign-in asks of the node."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def staging(self) -> memoryview: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def static_config(self) -> BrokerConfig: ...

    @property
    def users(self) -> Users: ...


class SignInService:
    """What all sign-ins of a node share: the users, what was remembered of passwords, and a thread for the rest."""

    def __init__(self, node: SignInHost) -> None:
        self.loop = node.loop
        self.trouble = RateLimitedLog(_log, node.loop.time)
        self._node = node
        self._key = secrets.token_bytes(32)
        self._derivations: dict[tuple[bytes, bytes, ScramMechanism], ScramCredential] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sign-in")

    @property
    def counters(self) -> Counters:
        return self._node.counters

    def mechanisms(self, config: SaslConfig) -> Mechanisms:
        """Return how a listener's clients may sign in."""
        users = self._users(config.users)
        made: Mechanisms = {}
        for name in config.mechanisms:
            if name == PLAIN:
                made[name] = partial(PlainExchange, self.passwords(config.users))
            else:
                made[name] = partial(self._scram, ScramMechanism(name), users)
        return made

    def passwords(self, given: Mapping[str, str]) -> PlainPasswords:
        """Return what checks passwords of users, those that are `given` in settings and the cluster's."""
        return PlainPasswords(self._users(given), key=self._key, secret=self._key)

    def now_ms(self) -> int:
        """The clock of lifetimes, which only grows."""
        return int(self.loop.time() * 1000)

    def check(self, check: Check) -> Awaitable[SignedIn]:
        """Do the work of a check beside the event loop, one at a time."""
        return self.loop.run_in_executor(self._thread, check.work)

    def close(self) -> None:
        """End the thread; what waits for it is cancelled."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _users(self, given: Mapping[str, str]) -> Users:
        return FirstOf(GivenUsers(given, self._derived), _ClusterUsers(self._node))

    def _scram(self, mechanism: ScramMechanism, users: Users) -> ScramExchange:
        return ScramExchange(mechanism, users, nonce=secrets.token_urlsafe(NONCE_BYTES), secret=self._secret())

    def _derived(self, name: str, password: bytes, mechanism: ScramMechanism) -> ScramCredential:
        salt = fake_credential(name, mechanism, self._secret()).salt  # as a name has that nobody has
        asked = (password, salt, mechanism)
        if asked not in self._derivations:  # some milliseconds, once for each name in the settings and mechanism
            self._derivations[asked] = credential_of(password, salt, ITERATIONS_MIN, mechanism)
        return self._derivations[asked]

    def _secret(self) -> bytes:
        """
        Return what challenges for unknown names come from.

        All nodes must answer alike, now and after a start. Where their settings share no secret, the one thing that
        strangers do not know is the cluster's id.
        """
        given = self._node.static_config.security.text("fluvial.sign.in.secret")
        return hmac.digest((given or self._node.cluster_id).encode(), b"challenges for unknown names", "sha256")


class _ClusterUsers:
    """The cluster's users, once this node can know them."""

    def __init__(self, node: SignInHost) -> None:
        self._node = node

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        found = self._node.users.scram(name, mechanism)
        if found is None and not self._node.is_serving:
            raise UsersUnknownError
        return found


class Expiring(Protocol):
    """A connection whose sign-in may end."""

    peer: str
    dispatch: Callable[[Any, RequestHeader, memoryview, Slot], None]

    def close(self) -> None: ...


class Session:
    """The sign-in of one connection, for as long as it is open."""

    def __init__(self, service: SignInService, config: SaslConfig, listener: str, mechanisms: Mechanisms) -> None:
        self.sasl = Sasl(mechanisms, lifetime_ms_max=config.lifetime_ms)
        self.delay_seconds = config.failure_delay_ms / 1000
        self._service = service
        self._listener = listener
        self._connection: Expiring | None = None
        self._dispatch: Callable[[Any, RequestHeader, memoryview, Slot], None] = dispatch
        self._expiry: asyncio.TimerHandle | None = None

    def let_in(self, connection: Expiring) -> None:
        """Watch over a connection that is signed in."""
        self._connection = connection
        self._dispatch = connection.dispatch
        self._watch()

    def handshake(self, mechanism: str, version: int, peer: str) -> tuple[Reply, Values]:
        """Take a SaslHandshake; return what that comes to and the response."""
        reply = self.sasl.handshake(mechanism, version, self._service.now_ms())
        self._told(reply, peer)
        return reply, {"error_code": reply.error, "mechanisms": self.sasl.names}

    async def authenticate(self, data: bytes, version: int, peer: str) -> tuple[Reply, Values]:
        """Take a SaslAuthenticate, or a token alone; raises UsersUnknownError, and then nothing has happened."""
        reply = self.sasl.authenticate(data, version, self._service.now_ms())
        if isinstance(reply, Check):
            done: asyncio.Future[SignedIn] = asyncio.ensure_future(self._service.check(reply))
            try:
                await asyncio.wait((done,))
            except asyncio.CancelledError:
                done.cancel()
                raise
            reply = self.sasl.checked(done.result, self._service.now_ms())
        self._told(reply, peer)
        if self._connection is not None and self.sasl.state is State.SIGNED_IN:
            self._connection.dispatch = self._dispatch
            self._watch()
        return reply, {
            "error_code": reply.error,
            "error_message": reply.text,
            "auth_bytes": reply.data,
            "session_lifetime": reply.lifetime_ms,
        }

    def interrupted(self, request: str, peer: str) -> Reply:
        """Take another request than those of a sign-in that is under way."""
        reply = self.sasl.interrupted(request)
        self._told(reply, peer)
        return reply

    async def refused(self) -> None:
        """Return when a refusal may be answered; the connection ends after that."""
        await asyncio.sleep(self.delay_seconds)
        if self._connection is not None:
            self._service.loop.call_later(self.delay_seconds, self._connection.close)

    def ended(self) -> None:
        """Forget the connection."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._connection = None

    def _told(self, reply: Reply, peer: str) -> None:
        counters = self._service.counters
        if self.sasl.state is State.SIGNED_IN and reply.error is ErrorCode.NONE:
            counters.sign_ins += 1
        if reply.reason is not None:
            counters.sign_ins_refused += 1
            self._service.trouble.failed("%s may not sign in at %s: %s", peer, self._listener, reply.reason)

    def _watch(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self.sasl.expires_ms is not None:
            self._expiry = self._service.loop.call_at(self.sasl.expires_ms / 1000, self._expired)

    def _expired(self) -> None:
        """Let nothing pass any more but another sign-in; an idle client may still come with one, as with Kafka."""
        if self._connection is not None:
            self._connection.dispatch = self._dispatch_expired

    def _dispatch_expired(self, node: Any, header: RequestHeader, body: memoryview, slot: Slot) -> None:
        if header.api_key in _SIGNING_IN:
            self._dispatch(node, header, body, slot)
        else:
            slot.fail_connection("its sign-in has ended")


class Caller(NamedTuple):
    """Who a connection is with: the name of the listener that it came by, and what sign-in has found."""

    listener: str = ""
    principal: Principal = ANONYMOUS
    session: Session | None = None  # where it may sign in again


UNKNOWN_CALLER = Caller()


class Receiver(Protocol):
    """What takes a connection over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...


class SignIn(asyncio.BufferedProtocol):
    """The protocol of an accepted socket until somebody has signed in."""

    is_closed = False

    def __init__(
        self,
        node: SignInHost,
        half_open: HalfOpen,
        session: Session,
        listener: str,
        *,
        receive_bytes_max: int,
        let_in: Callable[[Session], Receiver],
    ) -> None:
        """`let_in` makes the protocol that takes over, once the session has a principal."""
        self._node = node
        self._half_open = half_open
        self._let_in = let_in
        self._limit = receive_bytes_max
        self._received = bytearray()
        self._requests = 0
        self._is_busy = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.session = session
        self.listener = listener
        self.principal = ANONYMOUS
        self.host = self.peer = "?"

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.peer = peer[0], f"{peer[0]}:{peer[1]}"
        # Who has come through a TLS handshake was counted when that began.
        if transport.get_extra_info("sslcontext") is None and self._half_open.is_crowded(self.host):
            self.fail("its address has as many connections as it may have")
            return
        self._half_open.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._half_open.leave(self)
        self._received.clear()
        self.session.ended()
        if self._task is not None:
            self._task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._node.staging

    def buffer_updated(self, nbytes: int) -> None:
        self._node.counters.bytes_in += nbytes
        self._received += self._node.staging[:nbytes]
        self._half_open.holds(self, len(self._received))
        self._work()

    def give_up(self, reason: str) -> None:
        """End it at once."""
        self.fail(reason)

    def fail(self, reason: str) -> None:
        """End it at once and say why in the log."""
        if self.is_closed:
            return
        self.is_closed = True
        _log.info("closing the connection of %s, which had not signed in: %s", self.peer, reason)
        if self._transport is not None:
            self._transport.abort()

    # What a slot asks of the connection that it belongs to.

    def must_wait(self, slot: Slot) -> bool:
        """No answer here is large."""
        return False

    def hold(self, size: int) -> None:
        """What a request takes is bounded by its size."""

    def way_out(self, slot: Slot) -> None:
        """No answer here lies in a file."""

    def slot_done(self, slot: Slot, response_bytes: int) -> None:
        """Send the answer, and take the next request."""
        if slot.durations is not None:
            slot.durations.add(monotonic() - slot.began)
        self._send(b"".join(slot.chunks))
        self._go_on()

    # Requests, one at a time.

    def _work(self) -> None:
        while not self._is_busy and not self.is_closed and len(self._received) >= LENGTH_BYTES:
            length = int.from_bytes(self._received[:LENGTH_BYTES], "big", signed=True)
            if not 0 <= length <= self._limit:
                self.fail(f"a request of {length} bytes, and at most {self._limit} are read")
                return
            if len(self._received) < LENGTH_BYTES + length:
                return
            frame = memoryview(bytes(self._received[LENGTH_BYTES : LENGTH_BYTES + length]))
            del self._received[: LENGTH_BYTES + length]
            self._requests += 1
            if self._requests > REQUESTS_MAX:
                self.fail(f"more than {REQUESTS_MAX} requests")
                return
            self._take(frame)

    def _take(self, frame: memoryview) -> None:
        sasl = self.session.sasl
        self._is_busy = True
        assert self._transport is not None, "a connection is made before it receives"
        self._transport.pause_reading()
        if sasl.is_raw and sasl.state is State.EXCHANGING:
            self._begin(partial(self._token, bytes(frame)))
            return
        try:
            header, body = read_header(frame)
            api = APIS.get(header.api_key)
            is_served = api is not None and api.supports(header.api_version)
            if header.api_key == ApiKey.API_VERSIONS and sasl.state is State.NEW:
                slot = Slot(self, len(frame))
                slot.began = monotonic()
                dispatch(self._node, header, body, slot)
            elif header.api_key in _SIGNING_IN and is_served:
                request = read_request(header.api_key, header.api_version, body)
                self._begin(partial(self._sign_in, header, request))
            elif sasl.state is State.EXCHANGING and is_served:
                self._begin(partial(self._refuse, header, body))
            else:
                self.fail(f"api {header.api_key} version {header.api_version} was asked for")
        except MalformedRequestError as error:
            self.fail(str(error))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = self._node.loop.create_task(self._guarded(work))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            _log.exception("signing in %s failed", self.peer)
            self.fail("the broker failed; see its log")

    async def _sign_in(self, header: RequestHeader, request: Any) -> None:
        version = header.api_version
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            reply, values = self.session.handshake(request.mechanism, version, self.peer)
        else:
            reply, values = await self._authenticated(request.auth_bytes, version)
        response = write_response(header.api_key, version, header.correlation_id, values)
        await self._answer(reply, bytes(response))

    async def _token(self, token: bytes) -> None:
        """Take a message without a request around it, as after SaslHandshake v0; a refusal has no words then."""
        reply, _ = await self._authenticated(token, 0)
        if reply.error is ErrorCode.NONE:
            await self._answer(reply, reply.data)
        else:
            await self.session.refused()
            self._close()

    async def _authenticated(self, data: bytes, version: int) -> tuple[Reply, Values]:
        while True:
            try:
                return await self.session.authenticate(data, version, self.peer)
            except UsersUnknownError:
                serving = asyncio.Event()
                self._node.hold(serving.set)
                await serving.wait()

    async def _refuse(self, header: RequestHeader, body: memoryview) -> None:
        """Answer what does not belong between the messages of a mechanism."""
        api = APIS[header.api_key].key
        reply = self.session.interrupted(api.name, self.peer)
        response = write_refusal(
            api, header.api_version, header.correlation_id, reply.error, reply.text or "", body=body
        )
        await self._answer(reply, bytes(response))

    async def _answer(self, reply: Reply, response: bytes) -> None:
        if reply.error is not ErrorCode.NONE:
            await self.session.refused()
        self._send(len(response).to_bytes(LENGTH_BYTES, "big") + response)
        if reply.error is not ErrorCode.NONE:
            self._close()
        elif self.session.sasl.state is State.SIGNED_IN:
            self._hand_over()
        else:
            self._go_on()

    def _hand_over(self) -> None:
        if self.is_closed or self._transport is None:
            return
        self._half_open.leave(self)
        connection = self._let_in(self.session)
        self._transport.set_protocol(cast(asyncio.BaseProtocol, connection))
        connection.connection_made(self._transport)
        self._resume()  # before the connection decides for itself whether it reads
        # What the client has sent since, which began to come before it could know that it is let in.
        rest = memoryview(bytes(self._received))
        self._received.clear()
        while rest:
            buffer = connection.get_buffer(len(rest))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            connection.buffer_updated(size)
            rest = rest[size:]

    def _go_on(self) -> None:
        self._is_busy = False
        self._work()
        if not self._is_busy:
            self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _send(self, response: bytes) -> None:
        if not self.is_closed and self._transport is not None:
            self._node.counters.bytes_out += len(response)
            self._transport.write(response)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
