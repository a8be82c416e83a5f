"""`fluvial demo`: the main job on real data, which is a package of its own and needs extras."""

import importlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import BootstrapServer, CommandConfig, DataDir, RegistryUrl, SparkMaster, settings_of
from fluvial.errors import FluvialError
from fluvial.extras import pip_install
from fluvial.modules import look_in_current_folder

MODULE = "fluvial_demo.demo"


class DemoError(FluvialError):
    """The demo cannot run here."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial demo --until 2013-02-01")(demo)


def demo(
    *,
    until: Annotated[
        datetime | None,
        typer.Option(
            "--until", formats=["%Y-%m-%d"], help="Take only what happened before this day (UTC).", show_default=False
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers", min=1, help="Number of broker nodes (default: the existing number, or 1).", show_default=False
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With TLS, sign-in and rights, as `fluvial up --secure` starts a new platform.",
        ),
    ] = False,
    kill_a_node: Annotated[
        bool,
        typer.Option(
            "--kill-a-node", help="Kill one of three brokers midway and restart it: the results are the same."
        ),
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", help="Port of the broker (default: 9092).", show_default=False)
    ] = None,
    registry_port: Annotated[
        int | None,
        typer.Option(
            "--registry-port", help="Port of the first broker's schema registry (default: 8081).", show_default=False
        ),
    ] = None,
    data_dir: DataDir = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    registry_url: RegistryUrl = None,
    spark_master: SparkMaster = None,
) -> None:
    """
    Run the main job on the 336,776 flights that left New York in 2013, and show the answers.

    Starts the local platform unless another cluster is given, and writes the project of the demo into the working
    directory unless it is there. Run it again to complete an interrupted demo; a complete
    one does not change.
    """
    from fluvial.local.start import Layout

    settings = settings_of(
        data_dir, bootstrap_server, registry_url, spark_master=spark_master, command_config=command_config
    )
    main = load()
    layout = None
    if settings.local:
        layout = Layout(brokers=brokers, port=port, registry_port=registry_port, secured=secure)
    elif kill_a_node or secure:
        what = "--kill-a-node kills a broker of" if kill_a_node else "--secure is for"
        raise DemoError(f"{what} the local platform: leave out --bootstrap-server")
    main(
        settings,
        terminal.stdout(),
        terminal.stderr(),
        layout=layout,
        until=until.replace(tzinfo=UTC) if until is not None else None,
        kill_a_node=kill_a_node,
    )


def load(module: str = MODULE) -> Callable[..., None]:
    """Import the demo; raises DemoError that says which package is missing."""
    look_in_current_folder()  # where the project is, or will be
    try:
        main: Callable[..., None] = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        raise DemoError(f"the demo needs {error.name}, which is not installed: {pip_install('demo')}") from error
    return main
