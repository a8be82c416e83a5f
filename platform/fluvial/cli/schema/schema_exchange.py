"""`fluvial schema export`, `import`: subjects out of one registry and into another, with their ids."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_registry
from fluvial.config import Settings
from fluvial.errors import FluvialError

LINES = ".jsonl"
STDOUT = "-"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("export", epilog="Example:  fluvial schema export --to schemas.jsonl")(export)
    app.command("import", epilog="Example:  fluvial schema import schemas.jsonl --registry-url http://other:8081")(
        import_
    )


@with_registry
def export(
    *,
    settings: Settings,
    subjects: Annotated[
        list[str] | None, typer.Argument(metavar="[SUBJECT…]", help="None means all.", show_default=False)
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="A folder, a file of JSON lines (.jsonl), or - for stdout.")
    ] = STDOUT,
    deleted: Annotated[bool, typer.Option("--deleted", help="Take versions along that are hidden.")] = False,
) -> None:
    """Write subjects with all their versions, ids and settings; any registry of Confluent's API will do."""
    from fluvial.registry.exchange import export_subjects, write_folder, write_lines

    path = Path(to)
    with settings.registry.client() as client:
        entries = export_subjects(client, subjects or None, deleted=deleted)
        try:
            if to == STDOUT or to.endswith(LINES):
                with nullcontext(sys.stdout) if to == STDOUT else path.open("w", encoding="utf-8") as out:
                    count = write_lines(entries, out)
            else:
                count = write_folder(entries, path)
        except OSError as error:
            raise FluvialError(f"{path}: cannot be written: {error.strerror}") from error
    terminal.say(f"{count} versions written{'' if to == STDOUT else f' to {to}'}")


@with_registry
def import_(
    *,
    settings: Settings,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="What `export` wrote.", show_default=False)],
    new_ids: Annotated[
        bool,
        typer.Option(
            "--new-ids", help="Let the registry assign new ids; without it ids are preserved, by mode IMPORT."
        ),
    ] = False,
) -> None:
    """Put what `export` wrote into a registry; run again it changes nothing."""
    from fluvial.cli.schema.registries import as_owner
    from fluvial.registry.exchange import import_subjects, read_export

    entries = read_export(path)
    with settings.registry.client() as client:
        for each in import_subjects(lambda subject: as_owner(client, settings, subject), entries, keep_ids=not new_ids):
            there = "" if each.is_new else ", already existed"
            terminal.answer(f"{each.subject} version {each.version}: schema id {each.id}{there}")
