"""What `make bench-state` measures, and when: without a broker and without Spark."""

import io
from itertools import pairwise

import fastavro
import pytest

from tests.bench.state.events import NEWER, SCHEMA_ID, Contract, TwoVersions, encoded
from tests.bench.state.rows import BLOCK, DEFAULT, FOLDS, FULL, Row, Side, by_table


@pytest.mark.parametrize("row", [*DEFAULT, *FOLDS, *FULL], ids=str)
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
