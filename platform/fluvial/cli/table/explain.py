"""`fluvial table explain`: how a pipeline's table is refreshed, and what the last refresh did."""

import json
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_tables
from fluvial.cli.run.run import require_declared
from fluvial.cli.spark import spark_of
from fluvial.config import Settings


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table explain marts.spend_by_tier")(explain)


@with_tables
def explain(
    *,
    settings: Settings,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A pipeline's table, such as marts.spend.", show_default=False)
    ],
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Say how a pipeline's table would be refreshed now: from the rows or keys that changed or in full, and why.

    Also what would be read, and what the last refresh read, wrote and took. Nothing is written.
    """
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.inspect.explain import as_json, as_lines
    from fluvial.tables.inspect.explain import explain as explain_table

    declared = load_project(settings.project)
    require_declared([table], list(declared), settings.project)
    with terminal.keep_stdout_for_the_answer() as stdout:
        with spark_of(settings) as (spark, say):
            say(f"{table} …")
            found = explain_table(declared[table], settings, spark)
        text = json.dumps(as_json(found), indent=2) if answer_format is Form.JSON else "\n".join(as_lines(found))
        stdout.write(f"{text}\n".encode())
