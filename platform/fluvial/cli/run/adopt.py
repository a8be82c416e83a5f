"""`fluvial adopt`: take over Delta tables that somebody else made."""

from enum import StrEnum
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_tables
from fluvial.cli.run.run import require_declared
from fluvial.config import Settings


class Start(StrEnum):
    """Which records of the topic come after the rows that are there."""

    EARLIEST = "earliest"
    LATEST = "latest"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial adopt state.customers")(adopt)


@with_tables
def adopt(
    *,
    settings: Settings,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE…", help="Tables such as state.customers.")],
    start: Annotated[
        Start,
        typer.Option(
            "--from",
            help="Records that come after the rows: all that the topic still has, or only those after the latest.",
        ),
    ] = Start.EARLIEST,
) -> None:
    """
    Take over Delta tables that stand where the project declares its own, with their rows.

    The columns must be those that are declared, and the rows of compacted and state tables one a key. No row is
    changed: `fluvial run` then adds what the topic holds from the position on that the rows count as.
    """
    from fluvial.spark.session import build_session
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.drive.adoption import adopt as take_over

    declared = load_project(settings.project)
    require_declared(tables, list(declared), settings.project)
    with terminal.stderr().status("starting Spark …") as status, settings.registry.client() as schemas:
        spark = build_session(settings, say=status.update)
        try:
            for name in tables:
                status.update(f"{name} …")
                done = take_over(declared[name], settings, spark, schemas=schemas, start=start.value)
                terminal.say(f"{name}: {done.rows:,} rows are kept; version {done.version_after}")
        finally:
            spark.stop()
