"""
Where a node listens: each of its listeners with its socket, and what becomes of who connects there.

In plain text that is a `Connection` at once. Elsewhere a TLS handshake comes first, or a sign-in, or both.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, cast

from log_broker.core.security.listeners import ListenerConfig, ListenersConfig, SaslConfig, TlsConfig
from log_broker.core.security.mechanism import Mechanisms
from log_broker.core.security.principal import ANONYMOUS
from log_broker.server.net.connection import Connection, ConnectionHost
from log_broker.server.net.half_open import HalfOpen
from log_broker.server.net.sign_in import Caller, Session, SignIn, SignInHost, SignInService
from log_broker.server.net.tls import TlsContext, principal_of
from log_broker.server.net.tls_server import TlsServer
from log_broker.server.process.machine import BACKLOG, Machine, advertised_name
from log_broker.server.process.memory import give_back
from log_broker.server.process.ports import HasMachine

_log = logging.getLogger(__name__)


class ListenersHost(ConnectionHost, HasMachine, SignInHost, Protocol):
    """What listening asks of the node."""


class Listener:
    """One listener of a node."""

    def __init__(self, config: ListenerConfig) -> None:
        self.config = config
        self.socket: socket.socket | None = None
        self.port = config.port
        self.server: asyncio.Server | TlsServer | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def advertised(self) -> tuple[str, int]:
        """Where its clients are told to connect to."""
        host, port = self.config.advertised or ("", 0)
        return host or advertised_name(self.config.host), port or self.port

    def bind(self, machine: Machine) -> None:
        """Take its port; raises BindError."""
        self.socket = machine.bind(self.config.host, self.config.port)
        self.port = self.socket.getsockname()[1]


class Listeners:
    """All listeners of a node; the first is the one by which nodes reach each other."""

    def __init__(self, node: ListenersHost, config: ListenersConfig) -> None:
        """Raises BrokerError(INVALID_CONFIG) for certificates that cannot be used."""
        self._node = node
        self._config = config
        self._all = [Listener(each) for each in config.listeners]
        self._half_open = HalfOpen(node.loop, room_for=node.connections.room_for, after_flood=give_back)
        self._service = SignInService(node) if any(each.sasl is not None for each in config.listeners) else None
        self._contexts = {
            each.name: TlsContext(each.tls, is_server=True, clock=node.loop.time)
            for each in config.listeners
            if each.tls is not None
        }

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._all)

    @property
    def own(self) -> Listener:
        """The listener by which nodes reach each other."""
        return self._all[0]

    @property
    def controller_name(self) -> str:
        """The name of the listener by which controllers are reached; empty where that is the one between brokers."""
        return "" if self._config.controller is None else self._config.controller.name

    @property
    def of_controllers(self) -> Listener:
        """The listener by which controllers are reached, which may be the same."""
        return next((each for each in self if each.name == self.controller_name), self.own)

    @property
    def is_secured(self) -> bool:
        return self._config.is_secured

    def addresses(self) -> dict[str, str]:
        """Return the settings that say where a node listens, as they have come true."""
        listening = (f"{each.name}://{_in_url(each.config.host)}:{each.port}" for each in self)
        told = (f"{each.name}://{_in_url(each.advertised[0])}:{each.advertised[1]}" for each in self)
        return {"listeners": ",".join(listening), "advertised.listeners": ",".join(told)}

    def bind(self) -> None:
        """Take all ports; raises BindError, and then none is taken."""
        try:
            for each in self._all:
                each.bind(self._node.machine)
        except BaseException:
            self.unbind()
            raise

    def unbind(self) -> None:
        """Give back the ports of listeners that were not opened."""
        for each in self._all:
            if each.socket is not None and each.server is None:
                each.socket.close()

    async def open(self) -> None:
        """Take connections in from now on."""
        for each in self._all:
            await self._open(each)

    async def close(self) -> None:
        """Take no more connections in, and end those that are not let in yet."""
        for each in self._all:
            if isinstance(each.server, TlsServer):
                await each.server.close()
            elif each.server is not None:
                await self._node.machine.unlisten(each.server)
        self._half_open.close()
        if self._service is not None:
            self._service.close()

    async def _open(self, listener: Listener) -> None:
        assert listener.socket is not None, "it was bound"
        made = self._protocol(listener.config)
        context = self._contexts.get(listener.name)
        if context is not None:
            listener.server = TlsServer(listener.socket, context, made, self._half_open)
        else:
            listener.server = await self._node.loop.create_server(made, sock=listener.socket, backlog=BACKLOG)

    def _protocol(self, config: ListenerConfig) -> Callable[[], asyncio.BaseProtocol]:
        """Return what makes the protocol of a connection that was accepted, or whose TLS handshake is done."""
        if config.sasl is not None and self._service is not None:
            return partial(
                self._sign_in, config.name, config.sasl, self._service, self._service.mechanisms(config.sasl)
            )
        if config.tls is not None:
            return partial(_TlsEntry, self._node, config.name, config.tls)
        return partial(Connection, self._node, Caller(config.name))

    def _sign_in(self, name: str, config: SaslConfig, service: SignInService, mechanisms: Mechanisms) -> SignIn:
        return SignIn(
            self._node,
            self._half_open,
            Session(service, config, name, mechanisms),
            name,
            receive_bytes_max=config.receive_bytes_max,
            let_in=partial(self._let_in, name),
        )

    def _let_in(self, name: str, session: Session) -> Connection:
        connection = Connection(self._node, Caller(name, session.sasl.principal or ANONYMOUS, session))
        session.let_in(connection)
        return connection


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _TlsEntry(asyncio.Protocol):
    """Makes a connection of one whose handshake is done, with the principal of the certificate that was shown."""

    def __init__(self, node: ConnectionHost, listener: str, config: TlsConfig) -> None:
        self._node = node
        self._listener = listener
        self._config = config

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        secured = cast(asyncio.Transport, transport)
        try:
            principal = principal_of(self._config, secured.get_extra_info("peercert"))
        except ValueError as error:
            _log.warning("%s may not connect to %s: %s", secured.get_extra_info("peername"), self._listener, error)
            secured.abort()
            return
        connection = Connection(self._node, Caller(self._listener, principal))
        secured.set_protocol(connection)
        connection.connection_made(secured)
