"""
Spark's answers as text.

JSON and CSV lose nothing: a timestamp is ISO 8601 in UTC, a decimal keeps its digits, binary is base64, what is nested
is JSON. Only the table shortens; there binary is shown as text where it is text, otherwise as hexadecimal digits.
"""

import csv
import datetime as dt
import html
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

from fluvial.errors import FluvialError
from fluvial.query.json_text import json_text, not_finite, plain_text

if TYPE_CHECKING:
    from rich.console import Console

TABLE_ROWS_MAX = 50
CELL_CHARACTERS_MAX = 80

Columns = Sequence[tuple[str, str]]
"""Names and Spark type names; the type tells a timestamp with a zone from one without."""


class AnswerError(FluvialError):
    """The answer cannot be written in the format that was asked for."""


def write_json(columns: Columns, rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write one array of objects; raises AnswerError when two columns have one name."""
    objects = _objects(columns, rows)
    out.write("[")
    for at, each in enumerate(objects):
        out.write(f"{',' if at else ''}\n{each}")
    out.write("\n]\n")


def write_ndjson(columns: Columns, rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write an object a line; raises AnswerError when two columns have one name."""
    for each in _objects(columns, rows):
        out.write(f"{each}\n")


def _objects(columns: Columns, rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    names = [name for name, _ in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AnswerError(f"two columns are named {twice!r}, which a JSON object cannot hold; rename one with `as`")
    labels = [f"{json.dumps(name, ensure_ascii=False)}: " for name in names]
    return (f"{{{', '.join(_fields(labels, row, columns))}}}" for row in rows)


def _fields(labels: Sequence[str], row: Sequence[Any], columns: Columns) -> Iterator[str]:
    return (label + json_text(value, kind) for label, value, (_, kind) in zip(labels, row, columns, strict=True))


def write_csv(columns: Columns, rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write a header and all rows; null is an empty field."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    for row in rows:
        writer.writerow([_field(value, kind) for value, (_, kind) in zip(row, columns, strict=True)])


def write_markdown(columns: Columns, rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write a table of Markdown with all rows, whose cells are those of the table that is drawn."""
    numeric = ("int", "bigint", "smallint", "tinyint", "double", "float", "decimal")
    out.write(f"| {' | '.join(_escaped(name) for name, _ in columns)} |\n")
    out.write(f"| {' | '.join('---:' if kind.startswith(numeric) else '---' for _, kind in columns)} |\n")
    for row in rows:
        cells = (_escaped(_cell(value, kind)) for value, (_, kind) in zip(row, columns, strict=True))
        out.write(f"| {' | '.join(cells)} |\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def html_table(columns: Columns, rows: Sequence[Sequence[Any]], count: int) -> str:
    """Return the rows as a table of HTML, of `count` that there are; cells are those of the table that is drawn."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(_cell(value, kind))}</td>" for value, (_, kind) in zip(row, columns, strict=True))
        + "</tr>"
        for row in rows
    )
    said = f"{count} rows" if len(rows) == count else f"the first {len(rows)} of {count} rows"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{said}</p>"


def draw_table(columns: Columns, rows: Sequence[Sequence[Any]], console: "Console", *, more: bool) -> None:
    """Draw the rows; `more` says that there were others."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for at, (name, _) in enumerate(columns):
        numeric = any(isinstance(row[at], int | float | Decimal) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(_cell(value, kind)) for value, (_, kind) in zip(row, columns, strict=True)))
    console.print(table)
    console.print(f"the first {len(rows)} rows; --format csv gives all" if more else f"{len(rows)} rows")


def _field(value: Any, kind: str) -> str:
    match value:
        case None:
            return ""
        case bool() | int() | Decimal() | dict() | list() | tuple():
            return json_text(value, kind)
        case float():
            return repr(value) if math.isfinite(value) else not_finite(value)
    return plain_text(value, kind)


def _cell(value: Any, kind: str) -> str:
    match value:
        case None:
            return "null"
        case bytes() | bytearray():
            text = _readable(bytes(value))
        case dt.datetime():
            text = value.isoformat(sep=" ")
        case float():
            text = f"{value:.6g}" if abs(value) < 1e15 else repr(value)
        case _:
            text = _field(value, kind)
    text = " ".join(text.split("\n"))
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"


def _readable(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else f"0x{value.hex()}"
