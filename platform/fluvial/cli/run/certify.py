"""`fluvial certify`: find out what a sink promises."""

import json
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form
from fluvial.errors import FluvialError


class NotExactlyOnceError(FluvialError):
    """A sink loses or duplicates rows."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial certify my_project/sinks.py:Ledger")(certify)


def certify(
    *,
    sink: Annotated[
        str,
        typer.Argument(
            metavar="SINK", help="Class or function that creates the sink from a folder: module:name or file.py:name."
        ),
    ],
    commit_first: Annotated[
        bool,
        typer.Option("--commit-first", help="Its consumer commits before it writes, and never gets a batch again."),
    ] = False,
    kills: Annotated[int, typer.Option("--kills", help="How often its process is killed.", min=1)] = 12,
    seed: Annotated[int, typer.Option("--seed", help="Of the random moments.")] = 1,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Kill, repeat, cut and double what writes to a sink, and say what the sink promises, with the evidence.

    Ends with status 1 unless every attack left every row in it once.
    """
    from fluvial.testing.sink_certifier import Class
    from fluvial.testing.sink_certifier import certify as try_sink

    with terminal.keep_stdout_for_the_answer() as stdout:
        found = try_sink(sink, commit_first=commit_first, kills=kills, seed=seed)
        text = json.dumps(found.as_json(), indent=2) if answer_format is Form.JSON else str(found)
        stdout.write(f"{text}\n".encode())
    if found.verdict not in {Class.EXACTLY_ONCE, Class.EFFECTIVELY_ONCE}:
        raise NotExactlyOnceError(f"{found.sink} is {found.verdict}")
