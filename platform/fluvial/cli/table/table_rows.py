"""`fluvial table get` and `fluvial table diff`: rows of tables by their keys, without Spark."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_warehouse
from fluvial.cli.table.places import path_of
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluvial.delta.difference import Source

Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE[@VERSION]", help="Table, such as state.orders or state.orders@7.", show_default=False
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="COLUMN",
        help="Column that tells rows apart; repeatable (default: the table's key; of a history the place in the log).",
        show_default=False,
    ),
]


class NoRowError(FluvialError):
    """No row of a table has the key."""


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example:  fluvial table get state.customers ada")(get)
    app.command(epilog="Example:  fluvial table diff state.customers@41 state.customers@42")(diff)


@with_warehouse
def get(
    table: Table,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY…", help="Value of the key; of a history, partition and offset.", show_default=False
        ),
    ],
    key: Key = None,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    Show the row of a table that has this key; of a state with scd2, all of its versions.

    JSON is an array of rows. If there is no such row, the status is 1.
    """
    from fluvial.delta.rows import read_rows
    from fluvial.serve.keys import is_versioned

    source = _source(settings, table)
    keeps_former = is_versioned(source.name, source.snapshot)
    names = _key(source, key)[: None if key or not keeps_former else 1]
    if len(values) != len(names):
        raise typer.BadParameter(f"{table} has the key {', '.join(names)}: give {len(names)} of KEY, not {len(values)}")
    wanted = list(zip(names, values, strict=True))
    added = [each for each in source.snapshot.added if _holds(source, each, wanted)]
    rows = _where(read_rows(source.path, source.snapshot, added), wanted)
    if not len(rows):
        shown = ", ".join(f"{name} = {value}" for name, value in wanted)
        raise NoRowError(f"no row of {source} has {shown}")
    if keeps_former:
        rows = rows.sort_by("valid_from")
    found = _json_rows(rows, range(len(rows)))
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for row in found:
        terminal.table(("column", "value"), ((name, _text(value)) for name, value in row.items()))


@with_warehouse
def diff(
    table: Table,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE[@VERSION]]",
            help="What to compare it with (default: the newest version; of that, the one before).",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Show so many rows of each sort at most.")] = 10,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    Compare two versions of a table, or two tables: rows added, removed and changed, by key.

    Only data files that are not in both versions are read. Columns that one of the two lacks are named, not compared;
    `_fold`, what the folds of a state remember, is left out.
    """
    from fluvial.delta.difference import compare
    from fluvial.tables.declare.declarations import FOLD_COLUMN

    before, after = _source(settings, table), None if other is None else _source(settings, other)
    if after is None:
        name, at, _ = table.partition("@")
        after = _source(settings, name)
        if not at:
            before = _source(settings, f"{name}@{max(0, after.snapshot.version - 1)}")
    names = _key(after, key)
    _key(before, list(names))
    found = compare(before, after, names, ignored=(FOLD_COLUMN,))
    rows = [
        *(_difference("added", names, each, None, _row(found.after, at)) for each, at in _first(found.added, limit)),
        *(_difference("removed", names, each, _row(found.before, at), None)
          for each, at in _first(found.removed, limit)),
        *(
            _difference("changed", names, each, _row(found.before, old, columns), _row(found.after, new, columns))
            for each, (old, new, columns) in _first(found.changed, limit)
        ),
    ]  # fmt: skip
    answer: dict[str, Any] = {
        "before": str(before),
        "after": str(after),
        "key": list(names),
        "added": len(found.added),
        "removed": len(found.removed),
        "changed": len(found.changed),
        "columns_added": [name for name in after.columns if name not in before.columns],
        "columns_removed": [name for name in before.columns if name not in after.columns],
        "rows": rows,
    }
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    terminal.answer(
        f"{before} to {after}: {answer['added']} rows added, {answer['removed']} removed, {answer['changed']} changed"
    )
    for what in ("columns_added", "columns_removed"):
        if answer[what]:
            terminal.answer(f"{what.replace('_', ' ')}: {', '.join(answer[what])}")
    terminal.table(
        ("change", *names, "column", "before", "after"),
        (line for each in rows for line in _lines(each)),
    )


def _source(settings: Settings, text: str) -> "Source":
    from fluvial.delta.difference import Source
    from fluvial.delta.snapshot import read_snapshot

    name, at, version = text.partition("@")
    number = version.removeprefix("v")
    if at and not number.isdecimal():
        raise typer.BadParameter(f"{text}: write a version as a number, as in {name}@7")
    path = path_of(settings, name)
    snapshot = read_snapshot(path, int(number) if at else None)
    assert snapshot is not None, "the warehouse lists tables with a log"
    return Source(name=name, path=path, snapshot=snapshot)


def _key(source: "Source", given: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that tell the rows of a table apart."""
    from fluvial.serve.keys import key_columns

    if given:
        for name in given:
            if name not in source.columns:
                near = get_close_matches(name, source.columns, n=1)
                known = f"did you mean {near[0]}?" if near else f"it has {', '.join(source.columns)}"
                raise typer.BadParameter(f"--key {name}: no such column in {source.name}; {known}")
        return tuple(given)
    found = key_columns(source.name, source.path, source.snapshot)
    if not found:
        raise typer.BadParameter(f"{source.name}: name the columns that tell its rows apart with --key COLUMN")
    return found


def _holds(source: "Source", added: Mapping[str, Any], wanted: Sequence[tuple[str, str]]) -> bool:
    """Whether a file has a row with these values: only the columns of the key are read of it."""
    from fluvial.delta.rows import read_rows

    return len(_where(read_rows(source.path, source.snapshot, [added], [name for name, _ in wanted]), wanted)) > 0


def _where(rows: "pa.Table", wanted: Sequence[tuple[str, str]]) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, text in wanted:
        if pa.types.is_null(rows[name].type):
            return rows.slice(0, 0)
        try:
            value = pa.scalar(text).cast(rows[name].type)
        except pa.ArrowInvalid as error:
            raise typer.BadParameter(f"KEY {text!r}: column {name} is {rows[name].type}") from error
        rows = rows.filter(pc.equal(rows[name], value))
    return rows


def _json_rows(rows: "pa.Table", at: Sequence[int]) -> list[dict[str, Any]]:
    from fluvial.cli.topic.tabular import plain

    return [
        {field.name: plain(value, field.type) for field, value in zip(rows.schema, row.values(), strict=True)}
        for row in rows.take(list(at)).to_pylist()
    ]


def _row(rows: "pa.Table", at: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
    return _json_rows(rows if columns is None else rows.select(list(columns)), [at])[0]


def _first(found: Mapping[tuple[Any, ...], Any], limit: int) -> list[tuple[tuple[Any, ...], Any]]:
    """The first of them in the order of their keys."""
    order = sorted(found, key=lambda key: tuple((value is not None, value) for value in key))
    return [(key, found[key]) for key in order[:limit]]


def _difference(
    change: str,
    names: Sequence[str],
    key: Sequence[Any],
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
) -> dict[str, Any]:
    from fluvial.serde.avro_json import render

    shown = {name: None if value is None else render(value) for name, value in zip(names, key, strict=True)}
    return {"change": change, "key": shown, "before": before, "after": after}


def _lines(row: Mapping[str, Any]) -> Iterator[list[str]]:
    """A line for a row that is in one table only, and for a changed one a line for each column."""
    start = [row["change"], *map(_text, row["key"].values())]
    before, after = row["before"], row["after"]
    if before is None or after is None:
        yield [*start, "", _text(before), _text(after)]
        return
    for name, value in after.items():
        yield [*start, name, _text(before[name]), _text(value)]


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
