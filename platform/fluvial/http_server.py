"""
The HTTP servers of a node, of `fluvial schema serve` and before Dagster's page: uvicorn, encrypted or not.
"""

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from fluvial.http_guard import OwnSiteOnly, hosts_for
from fluvial.http_protocol import BoundedProtocol
from log_broker.core.security.listeners import TlsConfig
from log_broker.server.net.half_open import HalfOpen
from log_broker.server.net.tls import TlsContext
from log_broker.server.net.tls_server import TlsServer

CONNECTIONS_MAX = 1_000
BACKLOG_MAX = 1_024


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    tls: TlsContext | None = None,
    started: Callable[[int], None] | None = None,
    hosts: Callable[[], Collection[str]] = frozenset,
    origins: Callable[[], Collection[str]] = frozenset,
) -> None:
    """
    Serve `app` on the running event loop until this coroutine is cancelled; the process keeps its signal handlers.

    With `tls` by HTTPS. `started` is called with the bound port once connections are accepted. `hosts` are further
    names under which this server is asked, `origins` those whose pages may ask it. Raises OSError for a port that is
    taken.
    """
    listening = listen(host, port)
    if started is not None:
        # The kernel takes connections from here on; they wait the milliseconds until the server looks at them.
        started(listening.getsockname()[1])
    config = uvicorn.Config(
        OwnSiteOnly(app, hosts=lambda: hosts_for(host, hosts()), origins=origins),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
    )
    server = server_of(config, tls)
    # uvicorn would take SIGINT and SIGTERM for itself; the process that embeds us decides what they mean.
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve(sockets=[listening]), name="registry-http")
    try:
        await asyncio.shield(task)
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        listening.close()


def tls_of(certificate: Path, clock: Callable[[], float]) -> TlsContext:
    """Return what encrypts by a PEM file of a certificate and its key; raises BrokerError for one that will not do."""
    return TlsContext(TlsConfig(location=str(certificate)), is_server=True, clock=clock)


def server_of(config: uvicorn.Config, tls: TlsContext | None) -> uvicorn.Server:
    """Return the server, by HTTPS with `tls`; it takes the socket that it listens on when it is run."""
    return uvicorn.Server(config) if tls is None else _HttpsServer(config, tls)


class _HttpsServer(uvicorn.Server):
    """
    Takes connections in as the broker's encrypted listeners do.

    uvicorn's own would go on with the certificates that it was started with, and bounds no handshakes.
    """

    def __init__(self, config: uvicorn.Config, tls: TlsContext) -> None:
        super().__init__(config)
        self._tls = tls
        self._doors: list[tuple[TlsServer, HalfOpen]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()

        def made() -> asyncio.Protocol:
            return BoundedProtocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        for listening in sockets or ():
            half_open = HalfOpen(loop)
            self._doors.append((TlsServer(listening, self._tls, made, half_open), half_open))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server, half_open in self._doors:
            await server.close()
            half_open.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raises OSError for a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, because asyncio sets TCP_NODELAY only then; without it each reply waits 40 ms for the client's ack.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG_MAX)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
