"""
Rows by key over HTTP beside Spark's reading of the same version: the commits that runs make, upkeep and VACUUM between.
"""

import io
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving

from fluvial.delta.commit import KEYED_TABLE, append
from fluvial.delta.log import TableLog
from fluvial.delta.row_swap import FILE, ROW, WRITTEN, located, swap_located
from fluvial.delta.stamp import Stamp
from fluvial.delta.upkeep import compact_files, write_checkpoint
from fluvial.query.rendering import write_json
from fluvial.serve.warehouse import ServedWarehouse

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("FLUVIAL_SEED", "1"))
KEYS = 60
# Every kind of type, at its edges too, so that JSON is held to what `fluvial sql` writes.
ROW_OF = (
    "concat('k', id) AS customer",
    "id * {batch} AS orders",
    "cast(id * 0.37 + {batch} AS decimal(14, 2)) AS spent",
    "timestamp_seconds(1700000000 + id) AS at",
    "timestamp_ntz'1969-12-31 23:59:59.999999' AS local",
    "date_add(date'1582-10-10', cast(id AS int)) AS day",
    "if(id % 5 = 0, null, array(id, null)) AS numbers",
    "map('n', struct(cast(id AS double) / 7 AS x, timestamp_seconds(id) AS y)) AS nested",
    "id % 2 = 0 AS paid",
    "cast(concat('ß', id) AS binary) AS bytes",
    "if(id % 7 = 0, double('NaN'), double('-Infinity')) AS odd",
    "'{batch}' AS _fold",
)


def stamp(batch: int) -> Stamp:
    return Stamp(topic="orders", topic_id=None, batch=batch, offsets={0: (batch - 1, batch)})


class State:
    """A state in Spark's hands."""

    def __init__(self, spark: Any, warehouse: Path) -> None:
        self.spark = spark
        self.path = str(warehouse / "state" / "customers")
        self.batch = 1
        rows = self._rows(range(KEYS)).repartition(3)
        append(rows, self.path, stamp(1), KEYED_TABLE)

    @property
    def version(self) -> int:
        version = TableLog(None, self.path).newest_version()
        assert version is not None
        return version

    def swap(self, put: list[int], gone: list[int]) -> None:
        self.batch += 1
        old = located(self.spark, self.path, self.version).select("customer", FILE, ROW)
        new = self._rows(put).selectExpr("*", f"true AS {WRITTEN}")
        taken = self._rows(gone).selectExpr("*", f"false AS {WRITTEN}")
        rows = new.unionByName(taken).join(old, "customer", "left").where(f"{WRITTEN} OR {FILE} IS NOT NULL")
        swap_located(self.spark, self.path, rows, version=self.version, stamp=stamp(self.batch), files=1)

    def add_column(self) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.path}` ADD COLUMNS (note string)")
        self.spark.sql(f"INSERT INTO delta.`{self.path}` (customer, note) VALUES ('late', 'x')")

    def vacuum(self) -> None:
        session = self.spark.newSession()
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"VACUUM delta.`{self.path}` RETAIN 0 HOURS")

    def json_by_key(self, version: int) -> dict[str, str]:
        """The rows as `fluvial sql --format json` writes them."""
        frame = self.spark.read.format("delta").option("versionAsOf", str(version)).load(self.path).drop("_fold")
        columns = [(each.name, each.dataType.simpleString()) for each in frame.schema.fields]
        found = {}
        for row in frame.collect():
            text = io.StringIO()
            write_json(columns, [row], text)
            found[row["customer"]] = text.getvalue()[2:-3]
        return found

    def _rows(self, ids: Sequence[int]) -> Any:
        frame = self.spark.createDataFrame([(number,) for number in ids], "id long")
        return frame.selectExpr(*(column.format(batch=self.batch) for column in ROW_OF))


@pytest.fixture
def client(spark: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(ServedWarehouse(str(tmp_path))) as client:
        yield client


STEPS = ("swap", "compact", "column")
MORE_STEPS = ("swap", "swap", "compact", "swap", "checkpoint", "column", "swap", "vacuum")


@pytest.mark.parametrize("steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.rota)], ids=["few", "many"])
def test_rows_over_http_are_those_that_spark_reads(
    spark: Any, tmp_path: Path, client: httpx.Client, steps: Sequence[str]
) -> None:
    dice = random.Random(SEED)
    table = State(spark, tmp_path)
    seen: dict[int, dict[str, str]] = {}

    def compare(version: int, expected: dict[str, str], how: str) -> None:
        keys = [f"k{number}" for number in range(KEYS + 3)]
        answer = client.post("/tables/state.customers:batch", json={"keys": keys, how: version})
        assert answer.status_code == 200, answer.text
        rows = ", ".join(expected.get(key, "null") for key in keys)
        assert answer.text == f'{{"table": "state.customers", "version": {version}, "rows": [{rows}]}}'

    for step in steps:
        match step:
            case "swap":
                put = dice.sample(range(KEYS + 2), 12)
                table.swap(put, [number for number in dice.sample(range(KEYS), 6) if number not in put])
            case "compact":
                assert compact_files(spark.newSession(), table.path, files_max=1)
            case "checkpoint":
                write_checkpoint(spark, table.path)
            case "column":
                table.add_column()
            case "vacuum":
                for version, rows in seen.items():
                    compare(version, rows, "version")
                table.vacuum()
        seen[table.version] = table.json_by_key(table.version)
        compare(table.version, seen[table.version], "wait_version")
