"""Whether a refresh by keys is cheaper than the full query, and which files may hold the keys."""

import json
from dataclasses import replace
from datetime import date
from typing import Any, cast

import pytest

from fluvial.delta.file_stats import Bounds, of_action, ranges
from fluvial.tables.plan.changed_keys import rows_changed
from fluvial.tables.plan.refresh_cost import Work, why_full


def work(**numbers: int) -> Work:
    return Work(**{"inputs": 10_000_000, "read": 10_000_000, "table": 100_000, "changed": 10_000} | numbers)


@pytest.mark.parametrize(
    ("numbers", "road"),
    [
        ({"keys": 9_500, "replaced": 9_500}, "keys"),
        ({"keys": 80_000, "replaced": 80_000}, "full"),
        ({"keys": 365, "replaced": 100_000}, "full"),
        ({"inputs": 300_000, "read": 300_000, "table": 30_000, "keys": 1, "replaced": 1}, "full"),
        ({"inputs": 300_000, "read": 300_000, "table": 30_000}, "full"),
        ({"changed": 20_000_000}, "full"),
        ({"table": 0, "keys": 0, "replaced": 0}, "keys"),
    ],
)
def test_the_cheaper_road_is_taken(numbers: dict[str, int], road: str) -> None:
    assert (why_full(work(**numbers)) is None) == (road == "keys")


# As in docs/benchmarks.md, with the seconds of the processor that both roads took.
MEASURED = {
    "q11, 1.71 and 2.68": ({"inputs": 119_600, "table": 2_319, "changed": 9_200, "replaced": 971}, "keys"),
    "q9, 2.60 and 3.80": (
        {"inputs": 128_380, "read": 10_780, "table": 7_253, "changed": 980, "replaced": 133}, "keys",
    ),
    "q7, 1.38 and 3.88": ({"inputs": 405_720, "table": 5, "changed": 9_200, "replaced": 1}, "keys"),
    "q5, 3.60 and 2.15": ({"inputs": 130_909, "table": 11, "changed": 91_964, "replaced": 20}, "full"),
    "q3 at once, 2.40 and 2.08": ({"inputs": 34_480, "table": 843, "changed": 24_000, "replaced": 175}, "full"),
}  # fmt: skip


@pytest.mark.parametrize(("numbers", "road"), MEASURED.values(), ids=MEASURED)
def test_what_the_driver_can_find_is_weighed_as_it_was_measured(numbers: dict[str, int], road: str) -> None:
    few = replace(work(**{"read": numbers["inputs"], "keys": 1} | numbers), here=True)
    assert (why_full(few) is None) == (road == "keys")
    assert why_full(replace(few, here=False)) is not None, "Spark's jobs cost more than all of these tables"


def test_files_that_are_left_out_make_a_refresh_by_keys_cheaper() -> None:
    wide, narrow = work(keys=500, replaced=500), work(keys=500, replaced=500, read=100_000)
    assert narrow.by_keys < wide.by_keys
    assert narrow.full == wide.full


def action(stats: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"path": "a", "size": 5_000, **({} if stats is None else {"stats": json.dumps(stats)}), **more}


def test_a_file_is_known_by_its_statistics() -> None:
    stats = {
        "numRecords": 10,
        "minValues": {"id": 3, "day": "2026-01-02"},
        "maxValues": {"id": 9, "day": "2026-02-01", "name": "only a greatest"},
        "nullCount": {"id": 0, "day": 2, "name": 1, "empty": 10},
    }
    columns = {"id": "bigint", "day": "date", "name": "string", "empty": "string"}
    file = of_action(action(stats, deletionVector={"cardinality": 4}), columns)
    assert file.rows == 6
    assert file.bounds == {
        "id": Bounds(least=3, most=9, has_null=False),
        "day": Bounds(least=date(2026, 1, 2), most=date(2026, 2, 1), has_null=True),
        "empty": Bounds(least=None, most=None, has_null=True),
    }
    cut = {"numRecords": 1, "minValues": {"name": "a\ud800"}, "maxValues": {"name": "b"}, "nullCount": {"name": 0}}
    assert of_action(action(cut), columns).bounds == {}
    unknown = of_action(action(None), columns)
    assert (unknown.rows, unknown.bounds) == (100, {})


@pytest.mark.parametrize(
    ("keys", "null", "may"),
    [([1, 2], False, False), ([2, 3], False, True), ([9], True, True), ([10], False, False), ([], True, False)],
)
def test_bounds_tell_which_keys_may_be_there(keys: list[int], null: bool, may: bool) -> None:
    assert Bounds(least=3, most=9, has_null=False).may_hold(keys, null=null) is may
    assert Bounds(least=3, most=9, has_null=True).may_hold(keys, null=null) is (may or null)
    assert Bounds(least=None, most=None, has_null=True).may_hold(keys, null=null) is null


class Log:
    """The actions of each version."""

    def __init__(self, *versions: list[dict[str, Any]]) -> None:
        self._versions = versions

    def actions(self, version: int) -> list[dict[str, Any]]:
        return self._versions[version]


def test_how_many_rows_changed_is_read_from_the_log() -> None:
    ten, marks = action({"numRecords": 10}), {"deletionVector": {"cardinality": 3}}
    log = Log(
        [{"add": action({"numRecords": 99})}],
        [{"add": ten}, {"commitInfo": {}}, {"add": action({"numRecords": 5}) | {"path": "b"}}],
        [{"remove": {"path": "a", "size": 5_000, "dataChange": True}}, {"add": ten | marks}],
        [{"remove": ten | marks | {"dataChange": False}}, {"add": action(None) | {"path": "c", "dataChange": False}}],
        [{"remove": action({"numRecords": 5}) | {"path": "b"}}],
    )
    assert [rows_changed(cast("Any", log), version - 1, version) for version in range(1, 5)] == [15, 3, 0, 5]
    assert rows_changed(cast("Any", log), 0, 4) == 23


def test_ranges_hold_all_bounds() -> None:
    bounds = [Bounds(least=least, most=least + 2, has_null=False) for least in (20, 1, 2, 10, 30)]
    bounds.append(Bounds(least=None, most=None, has_null=True))
    assert ranges(bounds, 4) == [(1, 4), (10, 12), (20, 22), (30, 32)]
    assert ranges(bounds, 2) == [(1, 12), (20, 32)]
    assert ranges(bounds, 1) == [(1, 32)]
