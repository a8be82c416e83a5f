"""`fluvial table explain-row`: which records made a row, what each changed, and the commit that took it."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_tables
from fluvial.cli.run.run import require_declared
from fluvial.cli.spark import spark_of
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.tables.inspect.explain_row import RowStory, Step


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("explain-row", epilog="Example:  fluvial table explain-row state.customers ada")(explain_row)


@with_tables
def explain_row(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Table of a topic, such as state.customers.", show_default=False)
    ],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the records.", show_default=False)],
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="TOPIC:PARTITION=OFFSET[,…]",
            help="End at this offset of the topic, which counts; repeatable.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show so many records, the newest.")] = 100,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    Show the records that made a row in their order: place, time, version of the contract, what each field was after it.

    Also the version of the table and the run that took each, and records of the key that went to quarantine. They are
    read in the topic's history where the log no longer has all of them.
    """
    from fluvial.query.versions import At
    from fluvial.tables.declare.declarations import Compacted, History, State
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.inspect.explain_row import explain_row as explain

    declared = load_project(settings.project)
    require_declared([table], list(declared), settings.project)
    declaration = declared[table]
    if not isinstance(declaration, History | Compacted | State):
        raise typer.BadParameter(
            f"{table} is not made of a topic's records: `fluvial table explain {table}` tells of what"
        )
    places = At.of(at or ())
    other = next((each.topic for each in places if each.topic != declaration.topic), None)
    if other is not None:
        raise typer.BadParameter(f"--at {other}: {table} is made of topic {declaration.topic}")
    until = {number: offset for each in places for number, offset in each.offsets.items()}
    terminal.read_times_in_utc()
    with terminal.keep_stdout_for_the_answer() as stdout:
        with settings.registry.client() as schemas, spark_of(settings) as (spark, say):
            say(f"{table} …")
            story = explain(declaration, key, settings, spark, schemas=schemas, until=until, limit=limit)
            owner = (schemas.owner(story.contract) or {}).get("owner")
        if answer_format is Form.JSON:
            text = json.dumps(as_json(story, owner), indent=2, ensure_ascii=False)
        else:
            text = "\n".join(as_lines(story, owner))
        stdout.write(f"{text}\n".encode())


def as_json(story: "RowStory", owner: str | None) -> dict[str, Any]:
    """The story as it is written with --format json."""
    return {
        "table": story.table,
        "key": story.key,
        "version": story.version,
        "source": story.source,
        "contract": story.contract,
        "owner": owner,
        "left_out": story.left_out,
        "begins": {str(number): offset for number, offset in story.begins.items()},
        "steps": [
            {
                "partition": step.partition,
                "offset": step.offset,
                "timestamp": _plain(step.timestamp, "timestamp"),
                "contract_version": step.schema,
                "record": _plain_row(step.fields, story.types),
                "row": _plain_row(step.row, story.types),
                "table_version": None if step.taken is None else step.taken.version,
                "run": None if step.taken is None else step.taken.run,
            }
            for step in story.steps
        ],
        "quarantined": [
            {
                "partition": each.partition,
                "offset": each.offset,
                "timestamp": _plain(each.timestamp, "timestamp"),
                "reason": each.reason,
            }
            for each in story.aside
        ],
    }


def as_lines(story: "RowStory", owner: str | None) -> Iterator[str]:
    """The story as it is read: of each record what the row is after it, and of the fields those that changed."""
    whose = f", a contract of {owner}" if owner else ""
    yield f"{story.table} {story.key!r} at version {story.version}, by {story.source} ({story.contract}{whose})"
    for number, offset in sorted(story.begins.items()):
        yield f"partition {number} begins at offset {offset}: what was before is gone"
    if story.left_out:
        yield f"{story.left_out:,} earlier records are left out: --limit"
    aside = list(story.aside)
    before: Mapping[str, Any] | None = None
    for number, step in enumerate(story.steps):
        while aside and (aside[0].partition, aside[0].offset) < (step.partition, step.offset):
            yield from _aside(aside.pop(0))
        yield _head(step)
        yield from _changes(before, step.row, story, shows_all=number == 0)
        before = step.row
    for each in aside:
        yield from _aside(each)
    if not story.steps and not story.aside:
        yield "no record has this key"


def _head(step: "Step") -> str:
    parts = [f"{step.partition}:{step.offset}", _plain(step.timestamp, "timestamp")]
    if step.schema is not None:
        parts.append(f"contract version {step.schema}")
    if step.taken is not None:
        parts.append(f"in version {step.taken.version} by run {step.taken.run}")
    if step.fields is None:
        parts.append("tombstone")
    return "  ".join(parts)


def _changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, story: "RowStory", *, shows_all: bool
) -> Iterator[str]:
    if after is None:
        yield "    no row"
        return
    for name, value in after.items():
        if before is None or before[name] != value:
            was = "" if before is None or shows_all else f"{_plain(before[name], story.types[name])} → "
            yield f"    {name}: {was}{_plain(value, story.types[name])}"


def _aside(each: Any) -> Iterator[str]:
    yield f"{each.partition}:{each.offset}  {_plain(each.timestamp, 'timestamp')}  in quarantine"
    yield f"    {each.reason}"


def _plain_row(row: Mapping[str, Any] | None, types: Mapping[str, str]) -> dict[str, Any] | None:
    return None if row is None else {name: _plain(value, types[name]) for name, value in row.items()}


def _plain(value: Any, kind: str) -> Any:
    """A value as JSON has it."""
    from fluvial.query.json_text import json_text

    return json.loads(json_text(value, kind))
