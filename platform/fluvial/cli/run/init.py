"""`fluvial init`: a new project that runs at once."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fluvial.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial init my_platform")(init)


def init(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="Folder to create; its name becomes the project's.", show_default=False
        ),
    ],
) -> None:
    """
    Create a small project that runs as it is: a contract, a topic, a table, a check, tests and a producer.

    The folder must be new or empty.
    """
    from fluvial.scaffold import create_project

    for path in create_project(directory):
        terminal.answer(str(directory / path))
    folder = shlex.quote(str(directory))
    terminal.say(
        f"next:  cd {folder} && fluvial up --detach && python produce.py && fluvial run && "
        'fluvial sql "select customer, orders, spent from state.customers"'
    )
