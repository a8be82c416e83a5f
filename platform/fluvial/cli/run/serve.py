"""`fluvial serve`: rows of tables by their keys, over HTTP."""

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AllowedHosts, Certificate, pairs, with_cluster_and_warehouse
from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.local.lock import FolderLock
from fluvial.local.server import SERVER_LOCK, SERVER_PORT_DEFAULT
from fluvial.local.state import HOST, is_loopback

if TYPE_CHECKING:
    from fluvial.query.engine import Fresh
    from fluvial.query.made_frames import Frames
    from fluvial.query.versions import At
    from fluvial.serve.doors.door import Door
    from fluvial.serve.server import Listening
    from fluvial.serve.warehouse import ServedWarehouse

_GIB = 1 << 30


class ServingError(FluvialError):
    """Tables cannot be served."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial serve state.customers --key marts.cities=city")(serve)


@with_cluster_and_warehouse
def serve(
    *,
    settings: Settings,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE…]", help="Open these before saying ready; the others when asked for.", show_default=False
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="TABLE=COLUMN[,…]",
            help="Look the rows of a table up by these columns (default: the table's key); repeatable.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 for a free one.")] = (
        SERVER_PORT_DEFAULT
    ),
    flight_port: Annotated[
        int | None,
        typer.Option(
            "--flight-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Take queries by Arrow Flight SQL at this port, too; 0 for a free one (default: not at all).",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = HOST,
    certificate: Certificate = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext",
            help="Let other machines reach it without a certificate, or where the cluster has no users.",
        ),
    ] = False,
    allowed_hosts: AllowedHosts = None,
    kept_in: Annotated[
        Path | None,
        typer.Option(
            "--kept-in",
            metavar="FOLDER",
            help="Where key indexes and rows are kept (default: .serve in the warehouse).",
            show_default=False,
        ),
    ] = None,
    connect_port: Annotated[
        int | None,
        typer.Option(
            "--connect-port",
            min=0,
            max=65535,
            help="Serve Spark Connect too, on this port of 127.0.0.1: PySpark asks sc://127.0.0.1:PORT.",
            show_default=False,
        ),
    ] = None,
    thrift_port: Annotated[
        int | None,
        typer.Option(
            "--thrift-port",
            min=0,
            max=65535,
            help="Serve JDBC and ODBC too, by Spark on this port of 127.0.0.1: jdbc:hive2://127.0.0.1:PORT.",
            show_default=False,
        ),
    ] = None,
    keep_spark: Annotated[
        bool,
        typer.Option(
            "--keep-spark",
            help="Keep a Spark session running, which fluvial run and fluvial sql use then instead of starting one.",
        ),
    ] = False,
    allow_unconfined: Annotated[
        bool,
        typer.Option(
            "--allow-unconfined",
            help="Open these two ports also where the kernel cannot keep their clients from your files.",
        ),
    ] = False,
    of_platform: Annotated[bool, typer.Option("--of-platform", hidden=True)] = False,
    copies_max: Annotated[
        int, typer.Option("--copies-max", metavar="GIB", min=0, help="Keep rows of so many GiB a table at most.")
    ] = 20,
) -> None:
    """
    Serve rows by their keys, and queries, over HTTP until Ctrl-C: GET /tables/state.customers/ada, POST /sql.

    On 127.0.0.1 it asks nobody who they are. Elsewhere it asks for a user of the cluster and its password, and
    for a certificate by which these are encrypted.
    """
    with needed("serve"):
        import pyarrow
        import pyroaring  # noqa: F401

        if flight_port is not None:
            import pyarrow.flight  # noqa: F401

        from fluvial.http_exposure import Exposure
        from fluvial.serve.server import Listening
        from fluvial.serve.warehouse import ServedWarehouse

    does = "and could read every table"
    exposure = Exposure.of(settings, does=does, host=host, certificate=certificate, allow_plaintext=allow_plaintext)
    keys = {table: names.split(",") for table, names in pairs("--key", key).items()}
    doors = _doors(settings, connect_port, thrift_port, allow_unconfined=allow_unconfined)
    if keep_spark:
        from fluvial.serve.doors.kept_spark import kept_spark

        doors.append(kept_spark(settings, "fluvial.cli.main", say=terminal.say))
    warehouse = ServedWarehouse(settings.warehouse, keys=keys, kept_in=kept_in, copied_bytes_max=copies_max * _GIB)
    for name in (*(tables or ()), *keys):
        warehouse.table(name)
    try:
        belongs = _belonging(settings) if of_platform else nullcontext()
        listening = Listening(
            port=port,
            flight_port=flight_port,
            exposure=exposure,
            cluster=settings.cluster,
            hosts=frozenset(allowed_hosts or ()),
        )
        serving = _serve(
            warehouse,
            tables or [],
            listening,
            settings,
            doors,
        )
        with belongs:
            asyncio.run(serving)
    finally:
        warehouse.close()


def _doors(
    settings: Settings, connect_port: int | None, thrift_port: int | None, *, allow_unconfined: bool
) -> "list[Door]":
    """The further ports that are asked for."""
    if connect_port is None and thrift_port is None:
        return []
    from fluvial.serve.doors import connect, thrift
    from fluvial.spark.warehouse import Warehouse

    local = Warehouse.at(settings.warehouse).local
    if local is None:
        return []  # what serves rows says so
    root, doors = str(local.resolve()), []
    if connect_port is not None:
        doors.append(connect.connect_door(root, connect_port, allow_unconfined=allow_unconfined))
    if thrift_port is not None:
        say = terminal.say
        doors.append(thrift.thrift_door(settings, root, thrift_port, allow_unconfined=allow_unconfined, say=say))
    return doors


@contextmanager
def _belonging(settings: Settings) -> Iterator[None]:
    """Hold the lock by which `fluvial up` and `fluvial down` know the server of their platform."""
    lock = FolderLock(settings.data_dir / SERVER_LOCK)
    if not lock.acquire():
        raise ServingError(f"another server of the platform in {settings.data_dir} runs already")
    with lock:
        yield


def _fresh(settings: Settings, at_least: "Sequence[At]", **limits: Any) -> "AbstractContextManager[Fresh]":
    with needed():
        from fluvial.fresh.freshness import opened

    return opened(settings, at_least, **limits)


def _frames(project: str, memory_bytes: int) -> "Frames":
    with needed():
        from fluvial.fresh.frames import OtherProcess

    return OtherProcess(project=project, memory_bytes=memory_bytes)


async def _serve(
    warehouse: "ServedWarehouse",
    tables: list[str],
    listening: "Listening",
    settings: Settings,
    doors: "Sequence[Door]",
) -> None:
    from fluvial.query.served import noted
    from fluvial.serve.server import first_of, serve_rows
    from fluvial.serve.sql import Statements

    logging.basicConfig(level=logging.WARNING)
    exposure = listening.exposure
    is_local = is_loopback(exposure.host)
    stack = ExitStack()
    flight_urls: list[str] = []

    def started(bound: int) -> None:
        if exposure.is_open:
            terminal.say(f"warning: open to the network: whoever reaches {exposure.host} can read every table")
        if is_local and exposure.certificate is None:
            flight_url = next(iter(flight_urls), None)
            stack.enter_context(noted(settings, exposure.host, bound, flight_url=flight_url))
        terminal.say(f"tables of {warehouse.root} are served at {exposure.url(bound)}/tables; Ctrl-C stops it")

    def flight_started(bound: int) -> None:
        flight_urls.append(exposure.flight_url(bound))
        terminal.say(f"queries are taken at {flight_urls[0]}, by Arrow Flight SQL")

    def ready() -> None:
        if tables:
            terminal.say(f"ready: {', '.join(tables)}")

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    rows = serve_rows(
        warehouse,
        listening,
        preload=tables,
        statements=lambda: Statements(
            settings, needs_walls=not is_local, fresh=_fresh, frames=partial(_frames, settings.project)
        ),
        started=started,
        flight_started=flight_started,
        ready=ready,
    )
    if doors:
        from fluvial.serve.doors.door import beside

        rows = beside(rows, doors, terminal.say)
    serving = asyncio.create_task(rows)
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    serving.cancel()
    (outcome,) = await asyncio.gather(serving, return_exceptions=True)
    stack.close()
    if isinstance(outcome, BaseExceptionGroup):
        outcome = first_of(outcome)
    if isinstance(outcome, FluvialError):
        raise outcome
    if isinstance(outcome, OSError):
        raise ServingError(f"{exposure.host}:{listening.port}: {outcome.strerror or outcome}; choose another --port")
    if isinstance(outcome, Exception):
        raise outcome
