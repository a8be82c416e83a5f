"""`fluvial table adopt`: adopt Delta tables that another program created."""

from enum import StrEnum
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_tables
from fluvial.cli.run.run import require_declared
from fluvial.cli.spark import spark_of
from fluvial.config import Settings


class Start(StrEnum):
    """The first record of the topic to apply to the existing rows."""

    EARLIEST = "earliest"
    LATEST = "latest"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table adopt state.customers")(adopt)


@with_tables
def adopt(
    *,
    settings: Settings,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE…", help="Tables such as state.customers.")],
    start: Annotated[
        Start,
        typer.Option(
            "--from",
            help="First record to apply to the rows: the earliest that the topic still has, or the next new one.",
        ),
    ] = Start.EARLIEST,
) -> None:
    """
    Adopt existing Delta tables, with their rows, at the paths of the project's declarations.

    The columns must match the declaration, and compacted and state tables must have one row per key. No row is changed:
    `fluvial run` then applies the topic's records from the position that --from sets.
    """
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.drive.adoption import adopt as take_over

    declared = load_project(settings.project)
    require_declared(tables, list(declared), settings.project)
    with settings.registry.client() as schemas, spark_of(settings) as (spark, say):
        for name in tables:
            say(f"{name} …")
            done = take_over(declared[name], settings, spark, schemas=schemas, start=start.value)
            terminal.say(f"{name}: {done.rows:,} rows adopted; version {done.version_after}")
