"""
One node: a broker and the schema registry, in one process on one event loop.

    python -m fluvial.node --node-id 0 --port 9092 --registry-port 8081 --data-dir /var/lib/fluvial/node-0

It logs to stderr, says when it is ready (to the command that started it, or to systemd), and on SIGTERM flushes its
logs and ends with status 0. The only module that knows both `log_broker` and the registry.
"""

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
import uvloop
from starlette.types import ASGIApp

from fluvial.errors import FluvialError
from fluvial.health import WithHealth
from fluvial.http_doors import check_http_exposure, metrics_security, registry_security, rules_of
from fluvial.http_server import serve
from fluvial.local.child import READY
from fluvial.local.errors import DataDirError, LocalPlatformError, PortTakenError
from fluvial.local.lock import NODE_LOCK, FolderLock, holder
from fluvial.local.rights import make_private
from fluvial.local.state import HOST, OPEN_TO_THE_NETWORK, PORT_DEFAULT, is_loopback
from fluvial.registry.logs.schemas_log import SchemasLog, follow
from fluvial.registry.model.registry import Registry
from fluvial.registry.service.app import create_app
from fluvial.registry.service.cors import CrossOrigin
from fluvial.registry.service.forwarding import Forwarder
from fluvial.registry.validator import RegistryValidator
from log_broker.config.arguments import add_quorum_arguments, quorum_settings, set_settings
from log_broker.config.broker import BrokerConfig
from log_broker.core.security.http_listeners import METRICS, REGISTRY
from log_broker.errors import BrokerError
from log_broker.server.net.exposure import check_exposure, readable_by_others
from log_broker.server.net.tls import TlsContext
from log_broker.server.node import Node
from log_broker.server.process import memory as process_memory
from log_broker.server.process.machine import BindError
from log_broker.storage.data_directory import DataDirectoryError

LOCK_SECONDS = 1.0
"""How long the folder's lock may be held by those who only look whether it is."""

T = TypeVar("T")

log = structlog.get_logger("fluvial.node")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What a node is told when it starts; with a port of None it serves no registry or no metrics."""

    broker: BrokerConfig
    registry_port: int | None
    metrics_port: int | None = None
    metrics_host: str = HOST
    allow_plaintext: bool = False
    config_file: Path | None = None

    @property
    def http_hosts(self) -> dict[str, str]:
        """Where each HTTP server of the node listens, by its listener's name."""
        registry = {} if self.registry_port is None else {REGISTRY: self.broker.host}
        return registry if self.metrics_port is None else {**registry, METRICS: self.metrics_host}


async def run(options: NodeOptions, ready: Callable[[], None]) -> None:
    """Run a node until SIGTERM or SIGINT; raises FluvialError when it cannot start."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = options.broker
    schemas = SchemasLog()
    registry = Registry(schemas, rules=lambda: rules_of(node.config, node.authorizer))
    try:
        exposed = _look_at_exposure(options)
        node = Node(broker, validator=RegistryValidator(registry))
    except BrokerError as error:  # of its listeners
        raise LocalPlatformError(str(error)) from error
    schemas.attach(node)

    async def open_registry() -> None:
        # Before the first record comes the registry should know every schema; the rest it asks for when it is missed.
        await registry.open_from(schemas.read_replica())
        if not schemas.is_led_here:
            await registry.refresh_if_possible()

    with _explain_bind_errors(broker.data_dir, broker.host, broker.port, "--port"):
        await node.start(before_serving=open_registry)
    try:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(_beside(follow(registry, schemas)))
            if options.registry_port is not None:
                await _serve_registry(stack, options.registry_port, node, stopping, registry=registry, schemas=schemas)
            if options.metrics_port is not None:
                await _serve_metrics(stack, options.metrics_port, options.metrics_host, node, stopping)
            if exposed:
                log.warning(OPEN_TO_THE_NETWORK.format(", ".join(dict.fromkeys(exposed))))
            log.info("ready", node_id=broker.node_id, port=broker.port, registry_port=options.registry_port)
            process_memory.settle()
            ready()
            await stopping.wait()
            log.info("stopping", node_id=broker.node_id)
    finally:
        await node.stop()
    log.info("stopped", node_id=broker.node_id)


async def _serve_registry(
    stack: contextlib.AsyncExitStack,
    port: int,
    node: Node,
    stopping: asyncio.Event,
    *,
    registry: Registry,
    schemas: SchemasLog,
) -> None:
    """Serve the registry until `stack` ends, and tell where."""
    security = _secured(registry_security, node)
    if security is not None:
        stack.callback(security.close)
    tls = None if security is None else security.server_tls
    forwarder = Forwarder(registry, schemas, security)
    stack.push_async_callback(forwarder.close)
    config = node.static_config
    with _explain_bind_errors(config.data_dir, config.host, port, "--registry-port"):
        app = create_app(
            registry,
            forwarder,
            cluster_id=lambda: node.cluster_id,
            cross_origin=lambda: cross_origin_of(node.config),
            request_bytes_max=lambda: node.config.fluvial_registry_request_max_bytes,
            security=security,
        )
        served = _served(
            WithHealth(app, node),
            config.host,
            port,
            node,
            stopping,
            tls=tls,
            origins=lambda: node.config.access_control_allow_origin,
        )
        bound = await stack.enter_async_context(served)
    node.registry_url = f"{'http' if tls is None else 'https'}://{_in_url(node.advertised_host)}:{bound}"


async def _serve_metrics(
    stack: contextlib.AsyncExitStack, port: int, host: str, node: Node, stopping: asyncio.Event
) -> None:
    """Serve the metrics until `stack` ends."""
    from log_broker.server.ops.exposition import metrics_app

    guard = _secured(partial(metrics_security, host=host), node)
    app: ASGIApp = metrics_app(node)
    tls = None
    if guard is not None:
        stack.callback(guard.close)
        app, tls = guard.before(app), guard.server_tls
    with _explain_bind_errors(node.static_config.data_dir, host, port, "--metrics-port"):
        await stack.enter_async_context(_served(WithHealth(app, node), host, port, node, stopping, tls=tls))


def _secured(security_of: Callable[[Node], T], node: Node) -> T:
    try:
        return security_of(node)
    except BrokerError as error:  # of its certificates
        raise LocalPlatformError(str(error)) from error


def hosts_of(node: Node, host: str) -> frozenset[str]:
    """The names that an HTTP server of a node answers to, besides the address `host` that it listens on."""
    allowed = node.config.fluvial_http_allowed_hosts
    return allowed | {node.advertised_host} if allowed or is_loopback(host) else allowed


def cross_origin_of(config: BrokerConfig) -> CrossOrigin:
    """What the cluster's settings say of pages of other origins."""
    return CrossOrigin.from_settings(
        config.access_control_allow_origin, config.access_control_allow_methods, config.access_control_allow_headers
    )


def _look_at_exposure(options: NodeOptions) -> list[str]:
    """Return the addresses that are open to the network, as was asked for; raises BrokerError where it was not."""
    for line in readable_by_others(options.broker, options.config_file):
        log.warning(line)
    exposed = check_exposure(options.broker, allow_plaintext=options.allow_plaintext)
    return exposed + check_http_exposure(options.broker, options.http_hosts, allow_plaintext=options.allow_plaintext)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do `work` while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextlib.asynccontextmanager
async def _served(
    app: ASGIApp,
    host: str,
    port: int,
    node: Node,
    stopping: asyncio.Event,
    *,
    tls: TlsContext | None = None,
    origins: Callable[[], Collection[str]] = frozenset,
) -> AsyncIterator[int]:
    """Serve `app` inside the block, which gets the port; a server that ends by itself stops the node."""
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve(
            app,
            host,
            port,
            tls=tls,
            started=listening.set_result,
            hosts=lambda: hosts_of(node, host),
            origins=origins,
        ),
        name=f"http-{port}",
    )
    either: set[asyncio.Future[Any]] = {server, listening}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        try:
            await server
        except OSError as error:
            raise BindError(host, port, error.strerror or str(error)) from error
    server.add_done_callback(lambda task: stopping.set())
    try:
        yield listening.result()
    finally:
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _explain_bind_errors(data_dir: Path, host: str, port: int, flag: str) -> Iterator[None]:
    """Turn what the system refuses into an error that says what to do."""
    try:
        yield
    except BindError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            raise PortTakenError(host, port, flag=flag) from error
        raise LocalPlatformError(f"{error}; choose another address with --host and {flag}") from error
    except (BrokerError, DataDirectoryError) as error:
        raise LocalPlatformError(str(error)) from error
    except OSError as error:
        raise DataDirError(data_dir, error) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node of a command line; return the exit status."""
    words = _parser().parse_args(arguments)
    notify = _Notice(words.notify_fd, os.environ.get("NOTIFY_SOCKET"))
    _configure_logging()
    try:
        _own(words.data_dir)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(_options(words), notify.ready))
    except FluvialError as error:
        log.error("failed", reason=str(error))
        notify.failed(str(error))
        return 1
    except Exception as error:
        log.exception("failed")
        notify.failed(f"{type(error).__name__}: {error}; the whole story is in its log")
        return 1
    return 0


def _own(folder: Path) -> FolderLock:
    """
    Take the folder's lock, so that no second node works in it and everyone can see which process does.

    It is never given back: the kernel drops it when this process is gone, and whoever waits for it waits for that.
    """
    lock = FolderLock(folder / NODE_LOCK)
    try:
        make_private(folder, mark=NODE_LOCK)
        mine = lock.acquire(LOCK_SECONDS)
    except OSError as error:
        raise DataDirError(folder, error) from error
    if not mine:
        raise LocalPlatformError(f"process {holder(lock.path)} works in {folder} already; stop it first")
    return lock


class _Notice:
    """Tells whoever started this process how it gets on: once that it is ready, or why it will never be."""

    def __init__(self, pipe: int | None, systemd: str | None) -> None:
        self._pipe = pipe
        self._systemd = systemd

    def ready(self) -> None:
        self._write(READY)
        self._tell_systemd("READY=1")

    def failed(self, reason: str) -> None:
        line = " ".join(reason.split())
        self._write(line)
        self._tell_systemd(f"STATUS={line}")

    def _write(self, line: str) -> None:
        if self._pipe is None:
            return
        # Whoever started us may be gone by now.
        with contextlib.suppress(OSError):
            os.write(self._pipe, line.encode())
        os.close(self._pipe)
        self._pipe = None

    def _tell_systemd(self, message: str) -> None:
        if not self._systemd:
            return
        address = "\0" + self._systemd[1:] if self._systemd.startswith("@") else self._systemd
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(message.encode(), address)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fluvial.node", description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--node-id", type=int, default=0, help="this node's number in its cluster")
    parser.add_argument("--host", default=HOST, help="address to listen on")
    parser.add_argument("--advertised-host", help="the name under which clients reach this node (default: --host)")
    parser.add_argument("--port", type=int, default=PORT_DEFAULT, help="port of the broker")
    parser.add_argument("--registry-port", type=int, help="port of the schema registry; none without it")
    parser.add_argument("--metrics-port", type=int, help="port of the metrics for Prometheus; none without it")
    parser.add_argument(
        "--metrics-host", default=HOST, help="address to serve metrics on (default: %(default)s, this machine alone)"
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of this node alone")
    parser.add_argument("--cluster-id", help="the cluster this node belongs to (default: the one in its folder)")
    add_quorum_arguments(parser)
    parser.add_argument("--notify-fd", type=int, help=argparse.SUPPRESS)
    return parser


def _options(words: argparse.Namespace) -> NodeOptions:
    broker = BrokerConfig(
        data_dir=words.data_dir,
        node_id=words.node_id,
        host=words.host,
        port=words.port,
        advertised_host=words.advertised_host,
        cluster_id=words.cluster_id,
    ).with_settings(_settings(words))
    return NodeOptions(
        broker=broker,
        registry_port=words.registry_port,
        metrics_port=words.metrics_port,
        metrics_host=words.metrics_host,
        allow_plaintext=words.allow_plaintext,
        config_file=words.config,
    )


def _settings(words: argparse.Namespace) -> dict[str, str]:
    try:
        return {**quorum_settings(words), **set_settings(words)}
    except (BrokerError, ValueError) as error:
        raise LocalPlatformError(str(error)) from None


def _configure_logging() -> None:
    """Write the log lines of structlog and of the standard library alike, as key=value on stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "logger", "event"]),
            ],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


if __name__ == "__main__":
    sys.exit(main())
