"""`fluvial ui`: the project on Dagster's own web page."""

import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import BootstrapServer, CommandConfig, DataDir, RegistryUrl, Warehouse, settings_of
from fluvial.cli.signals import StopAsked, stop_signals_raise, stop_signals_wait
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.orchestration.run.ui import Command

START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.1


class PageError(FluvialError):
    """The web page did not start."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial ui --port 3000")(ui)


def ui(
    *,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port of the page (default: a free one).", show_default=False),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen at. Where other machines reach it, users of the cluster are asked for: who may "
            "DESCRIBE the cluster sees the page, who may ALTER it starts runs.",
        ),
    ] = "127.0.0.1",
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="PEM file with a certificate and its key: serve HTTPS, and ask for users on this machine too.",
            show_default=False,
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext",
            help="Let other machines reach a page without a certificate, or one of a cluster that has no users.",
        ),
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser at the page.")] = True,
    data_dir: DataDir = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    registry_url: RegistryUrl = None,
    warehouse: Warehouse = None,
) -> None:
    """
    Serve the Dagster page of the project until Ctrl-C.

    On 127.0.0.1 it asks nobody who they are. Elsewhere it asks for a user of the cluster and its password, and
    for a certificate by which these are encrypted.
    """
    from fluvial.http_exposure import Exposure
    from fluvial.orchestration.run.ui import ui_command

    settings = settings_of(data_dir, bootstrap_server, registry_url, warehouse=warehouse, command_config=command_config)
    does = "the page starts runs for whoever asks"
    exposure = Exposure.of(settings, does=does, host=host, certificate=certificate, allow_plaintext=allow_plaintext)
    command = ui_command(settings, port=port, exposure=exposure)
    if exposure.is_open:
        terminal.say(f"the page is open to the network: whoever reaches {host} can start runs and read what is shown")
    _require_free(command)
    environment = {**os.environ, **command.environment}
    with stop_signals_raise():
        process = subprocess.Popen(command.argv, env=environment, stdout=sys.stderr, start_new_session=True)
        try:
            _wait_for_page(process, command)
            terminal.say(f"the page is at {command.url}; Ctrl-C stops it")
            if browser and sys.stdout.isatty():
                webbrowser.open(command.url)
            raise PageError(f"the page ended with exit status {process.wait()}")
        except StopAsked:
            terminal.say("stopping the page")
        finally:
            with stop_signals_wait():
                _stop(process)


def _require_free(command: "Command") -> None:
    from fluvial.http_exposure import family_of

    with socket.socket(family_of(command.host)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((command.host, command.port))
        except OSError as error:
            raise PageError(f"port {command.port}: {error.strerror}; choose another with --port") from error


def _wait_for_page(process: "subprocess.Popen[bytes]", command: "Command") -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        status = process.poll()
        if status is not None:
            raise PageError(f"Dagster ended with exit status {status} before it served the page; its words are above")
        try:
            with socket.create_connection((command.host, command.port), timeout=1):
                return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise PageError(f"Dagster did not serve {command.url} within {START_SECONDS:.0f} s") from error
            time.sleep(_POLL_SECONDS)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop Dagster as Ctrl-C would, with the servers that it started; then whatever is left of its group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
