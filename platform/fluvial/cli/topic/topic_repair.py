"""`fluvial topic repair`: let readers pass stored batches that nobody can read."""

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.options import AnswerFormat, Form

if TYPE_CHECKING:
    from log_broker.storage.unreadable import Unreadable

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=completion.topics),
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial topic repair orders --log-dir .fluvial/node-1 --execute")(repair)
    app.command("mend", hidden=True, deprecated=True)(repair)


def repair(
    *,
    topic: Topic,
    log_dir: Annotated[
        Path,
        typer.Option(
            "--log-dir",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="Data folder of a stopped node, such as .fluvial/node-1.",
            show_default=False,
        ),
    ],
    execute: Annotated[bool, typer.Option("--execute", help="Do what is shown; without it nothing changes.")] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Show the stored batches of a topic that no consumer can read, and make them skippable.

    Consumers stop at such a batch. With --execute its unreadable records are removed from it; its
    offsets stay, and readers go on behind it. Stop one node after the other and do this with the folder of each.
    """
    from fluvial.errors import FluvialError
    from log_broker.storage.data_directory import DataDirectory, DataDirectoryError

    folders = sorted(
        folder
        for folder in log_dir.glob(f"{topic}-*")
        if folder.is_dir() and folder.name.removeprefix(f"{topic}-").isdigit()
    )
    if not folders:
        raise FluvialError(
            f"there is no partition of topic {topic!r} in {log_dir}; --log-dir is the folder of one node"
        )
    claim = DataDirectory(log_dir)
    try:
        claim.acquire()
    except DataDirectoryError as error:
        raise FluvialError(f"{error}: stop that node first") from error
    try:
        found = _look(folders, execute=execute)
    except OSError as error:
        raise FluvialError(f"{log_dir} cannot be read and written: {error}") from error
    finally:
        claim.release()
    _show(topic, found, execute=execute, answer_format=answer_format)


def _look(folders: list[Path], *, execute: bool) -> "list[tuple[Path, Unreadable]]":
    from log_broker.storage.files import OsFileSystem
    from log_broker.storage.unreadable import empty_batches, find_unreadable

    files = OsFileSystem()
    found = [(folder, each) for folder in folders for each in find_unreadable(files, folder)]
    damaged = {each.segment for _, each in found if each.header is None}
    wanted: dict[Path, set[int]] = defaultdict(set)
    for folder, each in found:
        if each.header is not None and each.segment not in damaged:
            wanted[folder].add(each.header.base_offset)
    if execute:
        for folder, offsets in wanted.items():
            empty_batches(files, folder, offsets)
    return found


def _show(topic: str, found: "list[tuple[Path, Unreadable]]", *, execute: bool, answer_format: Form) -> None:
    batches = [
        {
            "topic": topic,
            "partition": int(folder.name.rpartition("-")[2]),
            "first_offset": each.header.base_offset,
            "last_offset": each.header.last_offset,
            "bytes": each.header.size,
            "reason": each.reason,
        }
        for folder, each in found
        if each.header is not None
    ]
    damaged = [each for _, each in found if each.header is None]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps({"executed": execute, "batches": batches}, indent=2))
    elif batches:
        columns = ("topic", "partition", "first offset", "last offset", "bytes", "reason")
        terminal.table(columns, (each.values() for each in batches))
    for each in damaged:
        terminal.complain(
            f"{each.reason}: nothing in that segment was changed; start the node, which gets a good copy from a replica"
            " or cuts off what a crash has left unfinished, and try again"
        )
    if not batches and not damaged:
        terminal.say(f"every batch of {topic} in that folder can be read")
    elif batches and not execute:
        terminal.say("nothing was changed; add --execute to take these records out")
    if damaged:
        raise typer.Exit(1)
