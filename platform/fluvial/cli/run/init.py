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
    *,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Make certificates and a first user for the project's platform; all commands in it reach it by these.",
        ),
    ] = False,
) -> None:
    """
    Create a small project that runs as it is: a contract, a topic, a table, a check, tests and a producer.

    The folder must be new or empty.
    """
    from fluvial.scaffold import create_project

    if secure:
        from fluvial.local.security import check_securable

        data_dir = _data_dir_of(directory)
        check_securable(data_dir)
    for path in create_project(directory):
        terminal.answer(str(directory / path))
    folder = shlex.quote(str(directory))
    if secure:
        _secure(data_dir)
    terminal.say(
        f"next:  cd {folder} && fluvial up --detach && python produce.py && fluvial run && "
        'fluvial sql "select customer, orders, spent from state.customers"'
    )


def _data_dir_of(project: Path) -> Path:
    """Where commands in a new project will have their platform."""
    from fluvial.config import load_settings

    return project / load_settings(directory=project).data_dir


def _secure(data_dir: Path) -> None:
    """Make what `fluvial up` in the project finds, and then starts its nodes with."""
    from fluvial.local.security import secure

    terminal.answer(str(secure(data_dir)))
    terminal.say("the project's platform is secured: clients sign in by that file, which the commands here read")
