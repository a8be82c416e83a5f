"""What `make bench-state` measures, and when: without a broker and without Spark."""

import io
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest

from tests.bench.state.events import NEWER, SCHEMA_ID, Contract, TwoVersions, encoded
from tests.bench.state.merges import MergedTable, Tuned, merged_table
from tests.bench.state.rows import (
    BLOCK,
    COMMON,
    DEFAULT,
    FOLDS,
    FULL,
    ICEBERG,
    MARKING,
    TUNED,
    VECTORS,
    Row,
    Side,
    by_table,
)


@pytest.mark.parametrize("row", [*DEFAULT, *FOLDS, *MARKING, *FULL], ids=str)
def test_the_hand_written_sides_are_measured_evenly_over_the_run_to_its_end(row: Row) -> None:
    blocks = row.blocks
    assert len(blocks) * BLOCK == row.batches
    measured = [at for at, is_measured in enumerate(blocks) if is_measured]
    assert len(measured) * BLOCK == row.theirs
    gaps = {later - earlier for earlier, later in pairwise([-1, *measured])}
    assert max(gaps) - min(gaps) <= 1
    assert measured[-1] == len(blocks) - 1


def test_rows_of_one_table_share_it() -> None:
    groups = [[(row.keys, row.work) for row in group] for group in by_table(FULL)]
    assert [(len(group), len(set(group))) for group in groups] == [(3, 1)] * 4


def test_a_mean_has_the_upkeep_in_it_and_no_warm_up() -> None:
    side = Side([90.0, 90.0, 1.0, 1.0, 1.0, 5.0], 12_000_000)
    assert (side.mean, side.median, side.megabytes_a_batch) == (2.0, 1.0, 2.0)


def test_a_scan_is_a_median_of_warm_ones_and_older_results_have_none() -> None:
    side = Side([1.0, 1.0, 1.0], 6, [(9.0, 9.0), (9.0, 9.0), (4.0, 3.0), (6.0, 1.0), (5.0, 2.0)])
    assert (side.first_scan, side.scan) == (5.0, 2.0)
    assert Side([1.0], 6, [(9.0, 3.0), (9.0, 5.0)]).scan == 4.0
    assert Side(*cast("list[Any]", [[1.0, 1.0, 1.0], 6])).scans == []


@pytest.mark.parametrize("row", MARKING, ids=str)
def test_of_sides_that_mark_rows_every_batch_is_done_as_it_comes(row: Row) -> None:
    assert row.sides == (VECTORS, ICEBERG)
    assert all(row.blocks)


class Changes:
    """The rows of a batch, and whether they are kept while they are merged."""

    sparkSession = "a session"  # noqa: N815 - PySpark's name

    def __init__(self) -> None:
        self.kept = False

    def persist(self) -> "Changes":
        self.kept = True
        return self

    def unpersist(self) -> None:
        self.kept = False


class Merging:
    """A table that notes what is done with it, and takes no more merges than so many."""

    path = "where it lies"
    conf: Mapping[str, str] = {}

    def __init__(self, merges_max: int = 99) -> None:
        self.done: list[str] = []
        self._merges_max = merges_max

    def merge(self, changes: Changes, updates: Mapping[str, str]) -> None:
        self.done.append("merge" if changes.kept else "merge of what is computed again")
        if len(self.done) > self._merges_max:
            raise OSError("the disk is full")

    def keep_up(self, session: str) -> None:
        self.done.append(f"upkeep by {session}")

    def rows(self, session: str) -> None: ...
    def vectors_written(self, session: str) -> int:
        return 0


def test_a_tuned_table_keeps_a_batch_while_it_merges_and_has_upkeep_now_and_then() -> None:
    table, changes = Merging(), Changes()
    tuned = Tuned(cast("MergedTable", table), 2)
    tuned.merge(cast("Any", changes), {})
    tuned.merge(cast("Any", changes), {})
    assert table.done == ["merge", "merge", "upkeep by a session"]
    assert not changes.kept


def test_a_batch_is_let_go_of_when_its_merge_fails() -> None:
    table, changes = Merging(merges_max=0), Changes()
    tuned = Tuned(cast("MergedTable", table), 2)
    with pytest.raises(OSError, match="full"):
        tuned.merge(cast("Any", changes), {})
    assert not changes.kept


def test_each_side_has_the_settings_that_it_stands_for(tmp_path: Path) -> None:
    tables = {side: merged_table(side, tmp_path / side, 2_000_000) for side in (COMMON, TUNED, VECTORS, ICEBERG)}
    assert {name: table.conf["spark.sql.shuffle.partitions"] for name, table in tables.items()} == {
        COMMON: "200",
        TUNED: "2",
        VECTORS: "2",
        ICEBERG: "2",
    }
    catalogs = {name: [each for each in table.conf if "catalog" in each] for name, table in tables.items()}
    assert [name for name, found in catalogs.items() if found] == [ICEBERG]
    assert len({table.path for table in tables.values()}) == 4


@pytest.mark.parametrize("sequence", [3, 4])
def test_events_are_what_their_schema_says(sequence: int) -> None:
    raw = encoded(b"sensor-1", sequence, versions=2)
    version = {SCHEMA_ID: Contract, NEWER: TwoVersions}[int.from_bytes(raw[1:5], "big")]
    body = io.BytesIO(raw[5:])
    row = fastavro.schemaless_reader(body, version.parsed)
    assert not body.read()
    assert isinstance(row, dict)
    assert row["sensor"] == "sensor-1"
    assert row["sequence"] == sequence
    assert ("station" in row) == (version is TwoVersions)
