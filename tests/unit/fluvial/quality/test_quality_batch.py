"""Which rows the last run wrote, read from a table's log as Delta lays it down."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp, offsets_predicate
from fluvial.quality import Batch, NoBatchError, last_batch, whole_table


def test_each_range_is_half_open_and_an_empty_one_says_nothing() -> None:
    assert offsets_predicate({1: (5, 9), 0: (0, 3), 2: (7, 7)}) == (
        "(_partition = 0 AND _offset >= 0 AND _offset < 3) OR (_partition = 1 AND _offset >= 5 AND _offset < 9)"
    )


def test_no_range_is_no_row() -> None:
    assert offsets_predicate({0: (4, 4)}) == "false"


def run_of(offsets: dict[int, tuple[int, int]], batch: int) -> str:
    return Stamp(topic="orders", topic_id=None, batch=batch, offsets=offsets).as_json()


def table_log(folder: Path, *user_metadata: str | None) -> TableLog:
    """The log of a local table, one commit for each; a local log is read without Spark."""
    commits = folder / "_delta_log"
    commits.mkdir()
    for version, text in enumerate(user_metadata):
        info = {"operation": "WRITE", "txnId": f"txn-{version}", "userMetadata": text}
        actions = [{"commitInfo": info}, {"txn": {"appId": "fluvial/orders", "version": version}}]
        (commits / f"{version:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return TableLog(cast("Any", None), str(folder))


def test_the_last_batch_is_the_one_of_the_newest_run(tmp_path: Path) -> None:
    log = table_log(tmp_path, run_of({0: (0, 7)}, 1), run_of({0: (7, 9)}, 2))
    assert last_batch(log) == Batch(path=str(tmp_path), version=1, commit="txn-1", offsets={0: (7, 9)})


def test_upkeep_above_the_last_run_is_passed_over(tmp_path: Path) -> None:
    log = table_log(tmp_path, run_of({0: (0, 7)}, 1), None, "a remark")
    assert last_batch(log).version == 0
    assert whole_table(log) == Batch(path=str(tmp_path), version=2, commit="txn-2", offsets=None)


def test_where_no_run_has_written_there_is_no_batch(tmp_path: Path) -> None:
    with pytest.raises(NoBatchError, match="no run has written here"):
        last_batch(table_log(tmp_path, None))
    with pytest.raises(NoBatchError, match="there is no table here"):
        whole_table(TableLog(cast("Any", None), str(tmp_path / "elsewhere")))


def test_a_batch_says_what_it_is() -> None:
    batch = Batch(path="orders", version=4, commit=None, offsets={0: (3, 9)})
    assert str(batch) == "version 4, offsets 0: [3, 9)"
