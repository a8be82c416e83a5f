"""Data files that are written without Spark say of themselves what Delta wants to know."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fluvial.delta.arrow_files import write_file


def test_a_file_tells_its_rows_and_the_bounds_of_its_key(tmp_path: Path) -> None:
    rows = pa.table(
        {"who": ["b", None, "a"], "day": pa.array([3, 1, 2], pa.int32()), "long": ["x" * 40] * 3,
         "none": pa.nulls(3, pa.string()), "weight": [1.0, 2.0, 3.0]}
    )  # fmt: skip
    written = write_file(str(tmp_path), rows, rows.column_names)
    added = json.loads(written.action)["add"]
    read = pq.read_table(tmp_path / added["path"])
    assert read == rows
    assert b"org.apache.spark.version" in read.schema.metadata
    assert (written.rows, written.bytes) == (3, added["size"])
    assert added["size"] == (tmp_path / added["path"]).stat().st_size
    assert json.loads(added["stats"]) == {
        "numRecords": 3,
        "minValues": {"who": "a", "day": 1},
        "maxValues": {"who": "b", "day": 3},
        "nullCount": {"who": 1, "day": 0},
    }
