"""The rows of a small table as a check reads them, without Spark: the very ones that Spark reads."""

from pathlib import Path
from typing import Any

import pytest

from fluvial.delta.log import TableLog
from fluvial.quality import batch
from fluvial.quality.batch import rows_here, rows_of, whole_table

pytestmark = pytest.mark.spark

COLUMNS = """
    SELECT CAST(id AS STRING) name, CAST(id AS INT) number, id / 4 amount, CAST(id / 8 AS DECIMAL(10, 2)) price,
        CAST('1899-12-30 01:02:03.000004' AS TIMESTAMP) + make_interval(0, 0, 0, CAST(id AS INT)) at,
        DATE '2024-02-29' + CAST(id AS INT) day, id % 2 = 0 even, IF(id % 3 = 0, NULL, X'00FF') bytes
"""


@pytest.fixture
def log(spark: Any, tmp_path: Path) -> TableLog:
    """A table whose rows were added twice, with a column more, and some of them taken away."""
    path = str(tmp_path / "table")
    for start, more in ((0, ""), (10, ", CAST(id AS BYTE) more, named_struct('id', id) inner")):
        rows = spark.sql(f"{COLUMNS}{more} FROM range({start}, {start + 10})")
        writer = rows.coalesce(1).write.format("delta").mode("append").option("mergeSchema", "true")
        writer.option("delta.enableDeletionVectors", "true").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE number % 5 = 1")
    return TableLog(None, path)


def test_they_are_the_rows_that_spark_reads(log: TableLog, spark: Any) -> None:
    table = whole_table(log)
    found = rows_here(spark, table, lambda columns: [name for name in columns if name != "inner"])
    assert found is not None
    frame, count = found
    expected = rows_of(spark, table).drop("inner")
    assert frame.schema == expected.schema
    rows = sorted(expected.collect())
    assert (count, sorted(frame.collect())) == (16, rows)


def test_others_are_for_spark_to_read(log: TableLog, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = whole_table(log)
    assert rows_here(spark, table, lambda columns: ["number", "inner"]) is None
    monkeypatch.setattr(batch, "HERE_ROWS_MAX", 15)
    assert rows_here(spark, table, lambda columns: ["number"]) is None
