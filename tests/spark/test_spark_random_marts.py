"""
Random pipelines with a key over random histories, refreshed at random times and stopped at each step of a commit.

Whatever happened, the table is what the transform makes of the inputs at the versions that the table's stamp names.
"""

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from grouped_transforms import CUSTOMERS, ORDER_COLUMNS, ORDERS, SHAPES, random_change, random_orders, random_pipeline
from stopped_refresh import StoppedError, stopped

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.tables import Pipeline
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.refresh import key_plan, key_refresh, part_refresh

pytestmark = pytest.mark.spark

CHANGES = 5


@pytest.mark.rota
@pytest.mark.parametrize("seed", range(2 * len(SHAPES)))
def test_a_mart_is_always_the_batch_query(
    seed: int, spark: Any, warehouse_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    tables = _Tables(spark, warehouse_settings)
    tables.add(random_orders(random, 0, 60))
    tables.sql(f"CREATE TABLE {tables.name(CUSTOMERS)} (id string, city string) USING delta "
               "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")  # fmt: skip
    tables.sql(f"INSERT INTO {tables.name(CUSTOMERS)} VALUES ('c1', 'city 1'), ('c2', 'city 2'), ('c3', 'city 1')")
    mart = random_pipeline(random, SHAPES[seed % len(SHAPES)])
    # Tables of this size are always cheaper by the full query.
    for module in (key_plan, part_refresh):
        monkeypatch.setattr(module, "why_full", lambda work: "it is" if work.keys and random.random() < 0.2 else None)
    roads = []
    materialize(mart, warehouse_settings, spark)
    for number in range(1, CHANGES + 1):
        for _ in range(random.randint(1, 2)):
            changed = random_change(random, number)
            if changed is None:
                tables.add(random_orders(random, number * 100, random.randint(1, 8)))
            else:
                tables.sql(changed[1].replace("TABLE", tables.name(changed[0]), 1))
        if random.random() < 0.7:
            with stopped(random, monkeypatch, key_refresh, part_refresh), suppress(StoppedError):
                materialize(mart, warehouse_settings, spark)
        materialize(mart, warehouse_settings, spark)
        roads.append(tables.check(mart))
    verdict = verify(mart, warehouse_settings, spark, schemas=None)  # type: ignore[arg-type]
    assert ("keys" if mart.aggregation is None else "parts") in roads, (seed, roads)
    assert verdict.is_exact, (seed, mart.name, roads, verdict)


class _Tables:
    """The inputs, and what the mart must be."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark, self._settings = spark, settings

    def path(self, table: str) -> str:
        return f"{self._settings.warehouse}/{table.replace('.', '/')}"

    def name(self, table: str) -> str:
        return f"delta.`{self.path(table)}`"

    def sql(self, statement: str) -> None:
        self._spark.sql(statement)

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        orders = self._spark.createDataFrame(rows, ORDER_COLUMNS)
        orders = orders.selectExpr("*", "CAST(time AS TIMESTAMP) AS at").drop("time").coalesce(1)
        writer = orders.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true")
        writer.save(self.path(ORDERS))

    def check(self, mart: Pipeline) -> str:
        """Compare the mart with the batch query; the road that it was brought there by."""
        made = newest_made(TableLog(self._spark, self.path(mart.table)))
        assert made is not None
        assert made.stamp.refresh is not None
        frames = [
            self._spark.read.format("delta").option("versionAsOf", at.version).load(self.path(table))
            for table, at in made.stamp.inputs.items()
        ]
        found = self._spark.read.format("delta").load(self.path(mart.table))
        expected = _rows(mart(*frames).select(*found.columns))
        assert _rows(found) == expected, (mart.name, made.stamp.refresh)
        return made.stamp.refresh.road


def _rows(frame: Any) -> list[str]:
    """The rows as text, doubles as far as they do not depend on the order of their rows."""
    return sorted(
        str([float(f"{value:.9g}") if isinstance(value, float) else value for value in row]) for row in frame.collect()
    )
