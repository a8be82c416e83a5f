"""What was added to a table since its failing rows were counted, read from its log as Delta lays it down."""

import json
from pathlib import Path
from typing import Any

import pytest

from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp
from fluvial.quality import Counts, added_since
from fluvial.quality.counts import ends_of

COUNTS = Counts(version=0, commit="txn-0", suite="abc", ends={0: 7}, rows=7, failing={"not null": 2})
OPTIMIZE: list[dict[str, Any]] = [{"add": {"dataChange": False}}, {"remove": {"dataChange": False}}]
ADDED: list[dict[str, Any]] = [{"add": {"dataChange": True}}]
REPLACED: list[dict[str, Any]] = [*ADDED, {"remove": {"dataChange": True}}]


def run_of(start: int, end: int, partition: int = 0) -> str:
    return Stamp(topic="orders", topic_id=None, batch=end, offsets={partition: (start, end)}).as_json()


def table_log(folder: Path, *later: tuple[str | None, list[dict[str, Any]]]) -> TableLog:
    """The log of a table that was counted at its first version; `later` are the stamps and actions of more commits."""
    (folder / "_delta_log").mkdir()
    for version, (stamp, actions) in enumerate([(run_of(0, 7), [{"metaData": {}}, *ADDED]), *later]):
        info = {"operation": "WRITE", "txnId": f"txn-{version}", "userMetadata": stamp}
        lines = [{"commitInfo": info}, *actions, {"txn": {"appId": "fluvial/orders", "version": version}}]
        (folder / "_delta_log" / f"{version:020d}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return TableLog(None, str(folder))


def test_the_ranges_of_later_runs_were_added(tmp_path: Path) -> None:
    """A run whose records all went to quarantine adds none, and files that were written together are the same rows."""
    log = table_log(
        tmp_path, (run_of(7, 9), ADDED), (None, OPTIMIZE), (run_of(9, 11), []), (run_of(11, 12), ADDED),
        (run_of(0, 3, partition=1), ADDED),
    )  # fmt: skip
    added = added_since(log, COUNTS)
    assert added is not None
    assert (added.version, added.commit, added.offsets) == (5, "txn-5", {0: (7, 12), 1: (0, 3)})
    assert ends_of(log, 3) == {0: 11}


def test_where_nothing_was_added_there_is_no_range(tmp_path: Path) -> None:
    added = added_since(table_log(tmp_path, (None, OPTIMIZE)), COUNTS)
    assert added is not None
    assert (added.version, added.offsets) == (1, {})


@pytest.mark.parametrize(
    "commit",
    [
        pytest.param((None, REPLACED), id="deleted or replaced by others"),
        pytest.param((None, ADDED), id="inserted by others"),
        pytest.param((run_of(7, 7), REPLACED), id="written once more for a newer contract"),
        pytest.param((run_of(7, 9), [{"metaData": {}}, *ADDED]), id="other columns"),
        pytest.param((run_of(3, 9), ADDED), id="rows that were counted already"),
    ],
)
def test_any_other_change_has_the_table_counted_once_more(
    tmp_path: Path, commit: tuple[str | None, list[dict[str, Any]]]
) -> None:
    assert added_since(table_log(tmp_path, commit), COUNTS) is None


def test_a_log_that_does_not_tell_has_the_table_counted_once_more(tmp_path: Path) -> None:
    log = table_log(tmp_path, (run_of(7, 9), ADDED), (run_of(9, 10), ADDED))
    made_again = Counts(version=0, commit="another", suite="abc", ends={0: 7}, rows=7, failing={})
    assert added_since(log, made_again) is None
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert added_since(log, COUNTS) is None


def test_counts_are_read_back_as_they_were_stored() -> None:
    assert Counts.of_json(json.loads(json.dumps(COUNTS.as_json()))) == COUNTS
    assert [Counts.of_json(stored) for stored in (None, {}, "text", {"ends": {}})] == [None] * 4
