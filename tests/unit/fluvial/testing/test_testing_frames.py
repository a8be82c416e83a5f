"""Rows compared in any order; what differs is shown as a table."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from fluvial.testing import assert_frame_equal

ADA = {"customer": "ada", "orders": 3, "spent": 30.0}
BOB = {"customer": "bob", "orders": 1, "spent": 2.5}


def told(actual: Any, expected: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as failed:
        assert_frame_equal(actual, expected, **options)
    return str(failed.value)


def test_order_of_rows_and_columns_is_no_difference() -> None:
    assert_frame_equal([ADA, BOB], [BOB, dict(reversed(ADA.items()))])


def test_order_counts_where_it_is_asked_for() -> None:
    assert_frame_equal([ADA, BOB], [ADA, BOB], ordered=True)
    assert "2 missing, + 2 not expected" in told([ADA, BOB], [BOB, ADA], ordered=True)
    assert "1 missing, + 0 not expected" in told([ADA], [ADA, BOB], ordered=True)


def test_a_difference_is_shown_beside_the_row_it_is_in() -> None:
    assert told([{**ADA, "spent": 31.0}, BOB], [BOB, ADA]).splitlines() == [
        "2 rows, 2 expected; - 1 missing, + 1 not expected",
        "   customer  orders  spent",
        "-  'ada'     3       30.0",
        "+  'ada'     3       31.0 <",
    ]


def test_rows_are_paired_by_their_key() -> None:
    shown = told([{**BOB, "orders": 3, "spent": 30.0}, {**ADA, "orders": 9, "spent": 9.0}], [ADA, BOB]).splitlines()
    assert [line[:8].split() for line in shown[2:]] == [["-", "'ada'"], ["+", "'ada'"], ["-", "'bob'"], ["+", "'bob'"]]


def test_repeated_rows_are_counted() -> None:
    assert_frame_equal([ADA, ADA], [ADA, ADA])
    assert "2 rows, 1 expected; - 0 missing, + 1 not expected" in told([ADA, ADA], [ADA])
    assert "1 rows, 2 expected; - 1 missing" in told([ADA], [ADA, ADA])


def test_no_rows_are_no_rows() -> None:
    assert_frame_equal([], [])
    assert "1 rows, 0 expected" in told([ADA], [])
    assert "0 rows, 1 expected; - 1 missing" in told_of_a_frame([], [ADA])


def told_of_a_frame(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    return told(Frame(actual, list(ADA)), expected)


class Frame:
    """The part of a frame that is asked of an empty one."""

    def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        self._rows = rows
        self.columns = columns
        self.schema = type("Schema", (), {"fields": []})()

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def test_columns_are_named() -> None:
    assert told([ADA], [{**ADA, "city": "Rome"}]) == "column city is missing"
    assert told([{**ADA, "city": "Rome"}], [ADA]) == "column city is not expected"


def test_columns_of_fluvials_own_count_where_they_are_named() -> None:
    assert_frame_equal([{**ADA, "_offset": 7}], [ADA])
    assert_frame_equal([{**ADA, "_offset": 7}], [{**ADA, "_offset": 7}])
    assert "+  'ada'     3       30.0   7 <" in told([{**ADA, "_offset": 7}], [{**ADA, "_offset": 8}])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (1, 1.0, True),
        (1, True, False),
        (None, None, True),
        (None, 0, False),
        (0.1 + 0.2, 0.3, False),
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        (bytearray(b"a"), b"a", True),
        ("1", 1, False),
    ],
)
def test_values(one: Any, other: Any, same: bool) -> None:
    if same:
        assert_frame_equal([{"it": one}], [{"it": other}])
    else:
        assert "1 missing, + 1 not expected" in told([{"it": one}], [{"it": other}])


def test_floats_may_differ_by_a_tolerance() -> None:
    assert_frame_equal([{"it": [0.1 + 0.2]}], [{"it": [0.3]}], tolerance=1e-9)
    told([{"it": 0.31}], [{"it": 0.3}], tolerance=1e-9)


def test_instants_are_the_same_in_every_zone() -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    assert_frame_equal([{"at": noon}], [{"at": noon.astimezone(timezone(timedelta(hours=5)))}])
    assert_frame_equal([{"at": noon}], [{"at": datetime(2026, 1, 5, 12)}])
    told([{"at": noon}], [{"at": datetime(2026, 1, 5, 13)}])


def test_a_long_difference_is_cut() -> None:
    rows = [{"number": number, "text": "x" * 100} for number in range(30)]
    shown = told(rows, []).splitlines()
    assert shown[-1] == "… and 10 lines more"
    assert len(shown) == 23
    assert max(map(len, shown)) < 80


def test_expected_rows_name_the_same_columns() -> None:
    with pytest.raises(ValueError, match="spent is missing"):
        assert_frame_equal([ADA], [ADA, {"customer": "bob", "orders": 1}])
