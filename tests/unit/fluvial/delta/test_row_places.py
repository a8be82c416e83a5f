"""Rows that are looked for by their keys in the files of a table, without Spark."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluvial.delta.errors import DamagedFileError, LostFileError, TableError
from fluvial.delta.row_places import find_rows
from fluvial.delta.snapshot import Snapshot
from fluvial.delta.table_here import table_here

KEYS = pa.schema([("a", pa.string()), ("b", pa.int64())])
WANTED = pa.schema([("value", pa.int64()), ("text", pa.string())])


def snapshot_of(*files: str) -> Snapshot:
    added = tuple({"path": file} for file in files)
    return Snapshot(
        version=0, columns=(), partitioned_by=(), properties={}, files=len(files), bytes=0, rows=0, added=added
    )


def write(folder: Path, name: str, rows: list[tuple[str | None, int | None, int]]) -> None:
    columns = [*zip(*rows, strict=True)] if rows else [(), (), ()]
    values = pa.array(columns[2], pa.int64())
    texts = pa.array(columns[0], pa.string()), values.cast(pa.string())
    table = pa.table({"b": pa.array(columns[1], pa.int64()), "a": texts[0], "text": texts[1], "value": values})
    pq.write_table(table, folder / name)


@pytest.mark.parametrize("seed", range(10))
def test_found_rows_are_those_of_the_keys(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluvial.delta.row_places._ROWS_A_PART", 7)
    random = Random(seed)
    every = [(a, b) for a in (None, "x", "y", "long" * 9) for b in (None, 1, 2, 3, 2**62)]
    random.shuffle(every)
    rows = [(*key, number) for number, key in enumerate(every)]
    write(tmp_path, "one.parquet", rows[:9])
    write(tmp_path, "two%20.parquet", rows[9:])
    write(tmp_path, "none.parquet", [])
    keys = [*random.sample(every, random.randint(0, len(every))), ("z", 1)]
    wanted = pa.Table.from_pylist([dict(zip("ab", key, strict=True)) for key in keys], schema=KEYS)
    found = find_rows(str(tmp_path), snapshot_of("one.parquet", "none.parquet", "two%2520.parquet"), wanted, WANTED)
    values = {key: number for *key_, number in rows for key in [tuple(key_)]}
    assert found.by_key()["value"].to_pylist() == [values.get(key) for key in keys]
    assert found.by_key()["text"].to_pylist() == [str(values[key]) if key in values else None for key in keys]
    looked = set(keys)
    expected = {
        "one.parquet": [at for at, row in enumerate(rows[:9]) if row[:2] in looked],
        "two%20.parquet": [at for at, row in enumerate(rows[9:]) if row[:2] in looked],
    }
    assert {name: numbers.tolist() for name, numbers in found.places.items()} == {
        name: numbers for name, numbers in expected.items() if numbers
    }


def test_a_file_from_before_a_column_was_added_has_nulls_for_it(tmp_path: Path) -> None:
    write(tmp_path, "one.parquet", [("x", 1, 7), ("y", 2, 8)])
    pq.write_table(pa.table({"a": pa.array(["x"]), "value": pa.array([9], pa.int32())}), tmp_path / "old.parquet")
    keys = pa.Table.from_pylist([{"a": "x", "b": 1}, {"a": "x", "b": None}], schema=KEYS)
    found = find_rows(str(tmp_path), snapshot_of("old.parquet", "one.parquet"), keys, WANTED)
    assert found.rows.to_pylist() == [{"value": 9, "text": None}, {"value": 7, "text": "7"}]
    assert found.rows.schema == WANTED


def test_a_key_with_two_rows_is_no_table_of_ours(tmp_path: Path) -> None:
    write(tmp_path, "one.parquet", [("x", 1, 1), ("x", 1, 2)])
    keys = pa.table({"a": ["x"], "b": pa.array([1], pa.int64())})
    with pytest.raises(TableError, match="two rows"):
        find_rows(str(tmp_path), snapshot_of("one.parquet"), keys, WANTED).by_key()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    keys = pa.table({"a": ["x"], "b": pa.array([1], pa.int64())})
    with pytest.raises(LostFileError, match=r"gone\.parquet"):
        find_rows(str(tmp_path), snapshot_of("gone.parquet"), keys, WANTED)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(DamagedFileError, match=r"cut\.parquet"):
        find_rows(str(tmp_path), snapshot_of("cut.parquet"), keys, WANTED)


def test_tables_elsewhere_are_left_to_spark() -> None:
    assert table_here("s3://bucket/marts/spend", 3) is None
