"""
Rows compared as sets of rows are: in any order, and with a table of what differs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

ROWS_SHOWN_MAX = 20
CELL_CHARS_MAX = 40

Rows = Iterable[Mapping[str, Any]]
_MISSING = "(none)"


def assert_frame_equal(actual: Any, expected: Any, *, ordered: bool = False, tolerance: float = 0.0) -> None:
    """
    Assert that a Spark frame holds the rows of another one, or of a list of mappings; else show which rows differ.

    Order counts only if `ordered`. Columns that begin with an underscore (fluvial's own, such as `_offset`) count where
    `expected` names them. Timestamps of a frame are instants; in a list, those without a zone are UTC. NaN equals NaN,
    and floats may differ by `tolerance`. Either side may be rows as `collect()` gives them, whose timestamps are local.
    """
    want, want_columns = _rows(expected, naive_is_utc=True)
    got, got_columns = _rows(actual, naive_is_utc=False)
    named = set(want_columns)
    columns = [name for name in got_columns if name in named or not name.startswith("_")]
    if not want:
        # A list without rows names no column.
        named = named or set(columns)
    problems = [
        *(f"column {name} is missing" for name in want_columns if name not in got_columns),
        *(f"column {name} is not expected" for name in columns if name not in named),
        *_type_problems(actual, expected, columns),
    ]
    if problems:
        raise AssertionError("; ".join(problems))
    compare = _Comparison(columns, tolerance)
    lines = compare.in_order(got, want) if ordered else compare.in_any_order(got, want)
    if lines:
        raise AssertionError(_shown(columns, lines, len(got), len(want)))


def _rows(side: Any, *, naive_is_utc: bool) -> tuple[list[dict[str, Any]], list[str]]:
    if hasattr(side, "collect"):
        rows = [row.asDict(recursive=True) for row in side.collect()]
        stamps = {field.name for field in side.schema.fields if field.dataType.typeName() == "timestamp_ntz"}
        return [
            {name: value if name in stamps else _plain(value, naive_is_utc=False) for name, value in row.items()}
            for row in rows
        ], list(side.columns)
    listed = [row.asDict(recursive=True) if hasattr(row, "asDict") else dict(row) for row in side]
    columns = list(dict.fromkeys(name for row in listed for name in row))
    for row in listed:
        lacking = [name for name in columns if name not in row]
        if lacking:
            raise ValueError(f"every expected row names the same columns; {lacking[0]} is missing in {row!r}")
    return [{name: _plain(value, naive_is_utc=naive_is_utc) for name, value in row.items()} for row in listed], columns


def _plain(value: Any, *, naive_is_utc: bool) -> Any:
    """Bring a value to what can be compared: instants in UTC, byte strings, plain lists and mappings."""
    match value:
        case datetime():
            local = value.replace(tzinfo=UTC) if value.tzinfo is None and naive_is_utc else value
            return local.astimezone(UTC)
        case bytearray():
            return bytes(value)
        case Mapping():
            return {name: _plain(item, naive_is_utc=naive_is_utc) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item, naive_is_utc=naive_is_utc) for item in value]
        case _:
            return value


def _type_problems(actual: Any, expected: Any, columns: Sequence[str]) -> list[str]:
    if not (hasattr(actual, "dtypes") and hasattr(expected, "dtypes")):
        return []
    got, want = dict(actual.dtypes), dict(expected.dtypes)
    return [
        f"column {name} is {got[name]}, not {want[name]}"
        for name in columns
        if name in want and got.get(name) != want[name]
    ]


class _Comparison:
    """Finds what differs; each line is a sign and a row: `-` is expected and missing, `+` is there and not expected."""

    def __init__(self, columns: Sequence[str], tolerance: float) -> None:
        self._columns = columns
        self._tolerance = tolerance

    def in_order(self, got: list[dict[str, Any]], want: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        lines: list[tuple[str, dict[str, Any]]] = []
        for number in range(max(len(got), len(want))):
            there = got[number] if number < len(got) else None
            asked = want[number] if number < len(want) else None
            if there is None or asked is None or not self._same(there, asked):
                lines += [("-", asked)] if asked is not None else []
                lines += [("+", there)] if there is not None else []
        return lines

    def in_any_order(self, got: list[dict[str, Any]], want: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        left = list(got)
        missing = []
        for asked in want:
            found = next((index for index, there in enumerate(left) if self._same(there, asked)), None)
            if found is None:
                missing.append(asked)
            else:
                left.pop(found)
        lines: list[tuple[str, dict[str, Any]]] = []
        for asked in missing:
            lines.append(("-", asked))
            near = max(left, key=lambda there: self._alike(there, asked), default=None)
            if near is not None and self._alike(near, asked):
                lines.append(("+", near))
                left.remove(near)
        return lines + [("+", there) for there in left]

    def _alike(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
        """How many cells are the same, the first column's counting most: it is the key of most tables."""
        return sum(
            (len(self._columns) if index == 0 else 1)
            for index, name in enumerate(self._columns)
            if self._equal(one[name], other[name])
        )

    def _same(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return all(self._equal(one[name], other[name]) for name in self._columns)

    def _equal(self, one: Any, other: Any) -> bool:
        match one, other:
            case Mapping(), Mapping():
                return one.keys() == other.keys() and all(self._equal(one[name], other[name]) for name in one)
            case list(), list():
                return len(one) == len(other) and all(map(self._equal, one, other))
            case (bool(), _) | (_, bool()):
                return one is other
            case (float(), int() | float()) | (int(), float()):
                if math.isnan(one) or math.isnan(other):
                    return math.isnan(one) and math.isnan(other)
                return bool(one == other or abs(one - other) <= self._tolerance)
            case _:
                return bool(one == other)


def _shown(columns: Sequence[str], lines: list[tuple[str, dict[str, Any]]], got: int, want: int) -> str:
    missing = sum(sign == "-" for sign, _ in lines)
    head = f"{got} rows, {want} expected; - {missing} missing, + {len(lines) - missing} not expected"
    cells = [["", *columns]]
    for index, (sign, row) in enumerate(lines[:ROWS_SHOWN_MAX]):
        before = lines[index - 1][1] if index and sign == "+" and lines[index - 1][0] == "-" else None
        cells.append([sign, *(_cell(row[name], before is not None and before[name] != row[name]) for name in columns)])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    more = [f"… and {len(lines) - ROWS_SHOWN_MAX} lines more"] if len(lines) > ROWS_SHOWN_MAX else []
    return "\n".join([head, *drawn, *more])


def _cell(value: Any, differs: bool) -> str:
    text = value.isoformat() if isinstance(value, datetime) else repr(value)
    short = text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…"
    return f"{short} <" if differs else short
