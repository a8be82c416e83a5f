"""Data files that are written without Spark say of themselves what Delta wants to know."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fluvial.delta.arrow_files import write_file


def test_a_file_tells_its_rows_and_the_bounds_of_its_columns(tmp_path: Path) -> None:
    rows = pa.table(
        {"who": ["b", None, "a"], "day": pa.array([3, 1, 2], pa.int32()), "long": ["x" * 40] * 3,
         "none": pa.nulls(3, pa.string()), "weight": [1.5, None, -3.0], "odd": [1.0, float("nan"), 3.0],
         "on": [date(2026, 1, 31), date(1582, 10, 15), None], "price": [Decimal("1.10"), None, None]}
    )  # fmt: skip
    written = write_file(str(tmp_path), rows)
    added = json.loads(written.action)["add"]
    read = pq.read_table(tmp_path / added["path"])
    assert read.drop(["odd"]) == rows.drop(["odd"])
    assert str(read["odd"]) == str(rows["odd"]), "NaN equals nothing"
    assert b"org.apache.spark.version" in read.schema.metadata
    assert (written.rows, written.bytes) == (3, added["size"])
    assert added["size"] == (tmp_path / added["path"]).stat().st_size
    assert json.loads(added["stats"]) == {
        "numRecords": 3,
        "minValues": {"who": "a", "day": 1, "weight": -3.0, "on": "1582-10-15"},
        "maxValues": {"who": "b", "day": 3, "weight": 1.5, "on": "2026-01-31"},
        "nullCount": {"who": 1, "day": 0, "weight": 1, "on": 1},
    }


def test_who_looks_for_one_value_skips_most_pages(tmp_path: Path) -> None:
    written = write_file(str(tmp_path), pa.table({"key": [f"{number:06}" for number in range(20_000)]}))
    file = pq.ParquetFile(tmp_path / json.loads(written.action)["add"]["path"])
    column = file.metadata.row_group(0).column(0)
    assert column.has_offset_index
    assert column.has_column_index
    # Behind the pages the least and the greatest value of each, and then what the file says of itself.
    pages_end = column.dictionary_page_offset + column.total_compressed_size
    assert written.bytes - 8 - file.metadata.serialized_size - pages_end > 150, "one page has 86"
