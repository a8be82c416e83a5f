"""Spark's values as JSON, CSV and a table."""

import csv
import datetime as dt
import io
import json
from collections import namedtuple
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

from fluvial.query.rendering import AnswerError, draw_table, write_csv, write_json

Point = namedtuple("Point", ("x", "y"))
Point.__fields__ = ["x", "y"]  # type: ignore[attr-defined]

CASES: list[tuple[str, Any, str, str]] = [
    ("bigint", 9_007_199_254_740_993, "9007199254740993", "9007199254740993"),
    ("boolean", True, "true", "true"),
    ("string", 'a "b",\nc', r'"a \"b\",\nc"', 'a "b",\nc'),
    ("string", "grüße", '"grüße"', "grüße"),
    ("double", 0.1, "0.1", "0.1"),
    ("double", float("nan"), '"NaN"', "NaN"),
    ("double", float("-inf"), '"-Infinity"', "-Infinity"),
    (
        "decimal(38,18)",
        Decimal("12345678901234567890.123456789012345678"),
        *2 * ("12345678901234567890.123456789012345678",),
    ),
    ("decimal(10,0)", Decimal("1E+3"), "1000", "1000"),
    ("binary", b"\0\xff", '"AP8="', "AP8="),
    ("timestamp", dt.datetime(2013, 1, 1, 5, 15), '"2013-01-01T05:15:00Z"', "2013-01-01T05:15:00Z"),
    ("timestamp_ntz", dt.datetime(2013, 1, 1, 5, 15, 0, 1), *2 * ('"2013-01-01T05:15:00.000001"',)),
    ("date", dt.date(2013, 1, 1), '"2013-01-01"', "2013-01-01"),
    ("array<double>", [1.5, None], "[1.5, null]", "[1.5, null]"),
    ("map<int,string>", {1: "a"}, '{"1": "a"}', '{"1": "a"}'),
    ("struct<x:int,y:binary>", Point(1, b"\1"), *2 * ('{"x": 1, "y": "AQ=="}',)),
    ("void", None, "null", ""),
]


@pytest.mark.parametrize(("kind", "value", "as_json", "as_csv"), CASES, ids=[case[0] for case in CASES])
def test_nothing_is_lost(kind: str, value: Any, as_json: str, as_csv: str) -> None:
    out = io.StringIO()
    write_json([("v", kind)], [(value,)], out)
    assert out.getvalue() == f'[\n{{"v": {as_json}}}\n]\n'
    json.loads(out.getvalue(), parse_float=Decimal)
    out = io.StringIO()
    write_csv([("v", kind), ("w", "int")], [(value, 1)], out)
    assert list(csv.reader(io.StringIO(out.getvalue(), newline=""))) == [
        ["v", "w"],
        [as_csv.strip('"') if kind == "timestamp_ntz" else as_csv, "1"],
    ]


def test_no_rows_are_an_empty_array_and_a_header() -> None:
    out = io.StringIO()
    write_json([("a", "int")], [], out)
    assert json.loads(out.getvalue()) == []
    out = io.StringIO()
    write_csv([("a", "int"), ("b", "int")], [], out)
    assert out.getvalue() == "a,b\n"


def test_an_object_cannot_hold_two_columns_of_one_name() -> None:
    with pytest.raises(AnswerError, match="'a'"):
        write_json([("a", "int"), ("a", "int")], [], io.StringIO())


def test_only_the_table_shortens_and_shows_keys_as_text() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    draw_table(
        [("_key", "binary"), ("text", "string"), ("n", "int")],
        [(b"N14228", "x" * 300, 1), (b"\0\1", None, 2)],
        console,
        more=True,
    )
    drawn = out.getvalue()
    assert "N14228" in drawn
    assert "0x0001" in drawn
    assert "x" * 81 not in drawn
    assert "…" in drawn
    assert "the first 2 rows" in drawn
