"""`fluvial serve`: rows of tables by their keys, over HTTP."""

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import pairs, with_warehouse
from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.local.state import HOST, is_loopback

if TYPE_CHECKING:
    from fluvial.serve.warehouse import ServedWarehouse
    from log_broker.server.net.tls import TlsContext

PORT_DEFAULT = 8086
_GIB = 1 << 30


class ServingError(FluvialError):
    """Tables cannot be served."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial serve state.customers --key marts.cities=city")(serve)


@with_warehouse
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
        PORT_DEFAULT
    ),
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = HOST,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="Serve by HTTPS: a PEM file with the certificates and their key.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(
            "--client-ca",
            metavar="FILE",
            help="Let in only whom a certificate of these authorities names; with --certificate.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool, typer.Option("--allow-plaintext", help="Listen beyond this machine though nobody is asked who they are.")
    ] = False,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="A host name that clients use, besides its address; repeatable.",
            show_default=False,
        ),
    ] = None,
    kept_in: Annotated[
        Path | None,
        typer.Option(
            "--kept-in",
            metavar="FOLDER",
            help="Where key indexes and rows are kept (default: .serve in the warehouse).",
            show_default=False,
        ),
    ] = None,
    copies_max: Annotated[
        int, typer.Option("--copies-max", metavar="GIB", min=0, help="Keep rows of so many GiB a table at most.")
    ] = 20,
) -> None:
    """
    Serve rows of tables by their keys over HTTP until Ctrl-C, without Java: GET /tables/state.customers/ada.
    """
    with needed("serve"):
        import pyarrow  # noqa: F401
        import pyroaring  # noqa: F401

        from fluvial.serve.warehouse import ServedWarehouse

    if client_ca is not None and certificate is None:
        raise typer.BadParameter("--client-ca is for HTTPS: give --certificate too")
    if not (is_loopback(host) or (certificate is not None and client_ca is not None) or allow_plaintext):
        raise ServingError(
            f"--host {host}: whoever reaches it could read every table: give it --certificate and --client-ca, or say "
            "that it is meant with --allow-plaintext"
        )
    keys = {table: names.split(",") for table, names in pairs("--key", key).items()}
    warehouse = ServedWarehouse(settings.warehouse, keys=keys, kept_in=kept_in, copied_bytes_max=copies_max * _GIB)
    for name in (*(tables or ()), *keys):
        warehouse.table(name)
    try:
        serving = _serve(
            warehouse,
            tables or [],
            address=(host, port),
            certificate=certificate,
            client_ca=client_ca,
            allowed_hosts=frozenset(allowed_hosts or ()),
        )
        asyncio.run(serving)
    finally:
        warehouse.close()


async def _serve(
    warehouse: "ServedWarehouse",
    tables: list[str],
    *,
    address: tuple[str, int],
    certificate: Path | None,
    client_ca: Path | None,
    allowed_hosts: frozenset[str],
) -> None:
    from fluvial.serve.server import Listening, first_of, serve_rows

    host, port = address
    logging.basicConfig(level=logging.WARNING)
    listening = Listening(host=host, port=port, tls=_tls(certificate, client_ca), hosts=allowed_hosts)
    scheme = "http" if certificate is None else "https"

    def started(bound: int) -> None:
        if not is_loopback(host) and client_ca is None:
            terminal.say(f"warning: open to the network: whoever reaches {host} can read every table")
        terminal.say(f"tables of {warehouse.root} are served at {scheme}://{host}:{bound}/tables; Ctrl-C stops it")

    def ready() -> None:
        if tables:
            terminal.say(f"ready: {', '.join(tables)}")

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(serve_rows(warehouse, listening, preload=tables, started=started, ready=ready))
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    serving.cancel()
    (outcome,) = await asyncio.gather(serving, return_exceptions=True)
    if isinstance(outcome, BaseExceptionGroup):
        outcome = first_of(outcome)
    if isinstance(outcome, FluvialError):
        raise outcome
    if isinstance(outcome, OSError):
        raise ServingError(f"{host}:{port}: {outcome.strerror or outcome}; choose another --port")
    if isinstance(outcome, Exception):
        raise outcome


def _tls(certificate: Path | None, client_ca: Path | None) -> "TlsContext | None":
    from log_broker.core.security.listeners import TlsConfig
    from log_broker.errors import BrokerError
    from log_broker.server.net.tls import TlsContext

    if certificate is None:
        return None
    config = TlsConfig(
        location=str(certificate),
        trusted_location="" if client_ca is None else str(client_ca),
        client_auth="none" if client_ca is None else "required",
    )
    try:
        return TlsContext(config, is_server=True, clock=asyncio.get_running_loop().time)
    except BrokerError as error:
        raise ServingError(str(error)) from error
