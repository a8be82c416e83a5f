"""Keys as they come: in paths, words, JSON and Python, typed by the table's schema."""

import datetime as dt
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluvial.serve.errors import BadKeyError
from fluvial.serve.keys import Key, arrow_type

DAY, NOON = dt.date(2026, 3, 1), dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def key(*kinds: str) -> Key:
    return Key(columns=tuple(f"c{at}" for at in range(len(kinds))), kinds=kinds)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "a%2Fb", "a/b"),
        ("string", "", ""),
        ("string", "%C3%9F%00", "ß\0"),
        ("long", "-9223372036854775808", -(2**63)),
        ("byte", "127", 127),
        ("date", "2026-03-01", DAY),
        ("boolean", "true", True),
        ("binary", "%00%ff", b"\0\xff"),
        ("decimal(38,10)", "1234567890123456789012345678.5", Decimal("1234567890123456789012345678.5")),
        ("decimal(10,8)", "1e-8", Decimal("1e-8")),
        ("timestamp", "2026-03-01T13:00:00%2B01:00", NOON),
        ("timestamp", "2026-03-01T12:00:00", NOON),
        ("timestamp_ntz", "2026-03-01%2012:00:00", NOON.replace(tzinfo=None)),
    ],
)
def test_a_part_of_a_path_has_the_type_of_its_column(kind: str, text: str, value: Any) -> None:
    assert key(kind).of_path([text]) == (value,)
    stored = pa.table({"c0": pa.array([value], arrow_type(kind))})
    assert key(kind).texts(stored) == [key(kind).text((value,))]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("string", "%ff"),
        ("string", "x" * 70_000),
        ("long", "9223372036854775808"),
        ("long", "1_000"),
        ("long", "%D9%A3"),
        ("long", "1.0"),
        ("long", ""),
        ("byte", "128"),
        ("date", "2026-02-30"),
        ("date", "today"),
        ("boolean", "1"),
        ("decimal(10,2)", "1.234"),
        ("decimal(10,2)", "123456789"),
        ("decimal(10,2)", "NaN"),
        ("decimal(10,2)", "1e999999999"),
        ("decimal(10,2)", "9" * 5000),
        ("timestamp", "noon"),
        ("timestamp_ntz", "2026-03-01T12:00:00Z"),
    ],
)
def test_what_is_not_of_the_type_is_refused_in_one_line(kind: str, text: str) -> None:
    with pytest.raises(BadKeyError) as refused:
        key(kind).of_path([text])
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [None, [], [1, 2], {"c1": 1}, True, 1.5, [[1]], {"c0": None}, [[[[]]]], "x", {"c0": {}}, b"1", NOON],
)
def test_json_and_python_that_are_no_key_are_refused(value: Any) -> None:
    with pytest.raises(BadKeyError):
        key("long").of_value(value)


def test_a_key_of_one_column_may_hold_slashes_and_one_of_two_is_cut_at_them() -> None:
    assert key("string").of_path(["a", "b", ""]) == ("a/b/",)
    assert key("string", "long").of_path(["a%2Fb", "3"]) == ("a/b", 3)
    with pytest.raises(BadKeyError, match="the key is c0, c1: give 2 values, not 3"):
        key("string", "long").of_path(["a", "b", "3"])


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.dates())
def test_a_key_is_the_same_wherever_it_comes_from(text: str, number: int, day: dt.date) -> None:
    three = key("string", "long", "date")
    value = (text, number, day)
    parts = [quote(str(each), safe="") for each in value]
    assert three.of_path(parts) == value
    assert three.of_words([str(each) for each in value]) == value
    assert three.of_value([text, number, day.isoformat()]) == value
    assert three.of_value({"c2": day, "c0": text, "c1": str(number)}) == value
    stored = pa.table({name: [each] for name, each in zip(three.columns, value, strict=True)})
    assert three.texts(stored) == [three.text(value)]


def test_narrower_columns_of_older_files_have_the_same_keys_and_null_has_none() -> None:
    stored = pa.table({"c0": pa.array([1, None], pa.int32()), "c1": pa.array([Decimal("1.5"), None])})
    two = key("long", "decimal(20,4)")
    assert two.texts(stored) == [two.text((1, Decimal("1.5"))), None]
    assert two.texts(pa.table({"other": [1]})) == [None]
