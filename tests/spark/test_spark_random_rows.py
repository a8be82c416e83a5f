"""
Random pipelines without a key over random histories, refreshed at random times and stopped at each step of a commit.

Whatever happened, the table is what the transform makes of the inputs at the versions that the table's stamp names.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from grouped_transforms import CUSTOMERS, ORDER_COLUMNS, ORDERS, random_change, random_orders
from pyspark.sql import functions as sql
from stopped_refresh import StoppedError, stopped

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.tables import Pipeline, pipeline
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.refresh import row_plan, row_refresh

pytestmark = [pytest.mark.spark, pytest.mark.rota]

CHANGES, TURNS = 6, 24
STEPS: tuple[Callable[[Any], Any], ...] = (
    lambda rows: rows.where("amount > 3"),
    lambda rows: rows.where("customer IS NOT NULL AND item <> 'b'"),
    lambda rows: rows.withColumn("amount", sql.col("amount") % 3),
    lambda rows: rows.withColumn("item", sql.explode(sql.array("item", sql.lit("d")))),
    lambda rows: rows.withColumn("item", sql.expr("explode_outer(IF(amount > 5, array('x', 'x'), array()))")),
    lambda rows: rows.withColumn("weight", sql.round("weight", -1)),
    lambda rows: rows.drop("id").union(rows.drop("id")),
    lambda rows: rows.withColumn("tags", sql.expr("map(item, amount)")),
    lambda rows: rows.mapInPandas(lambda batches: (each[each.index % 1 == 0] for each in batches), rows.schema),
)
LOOKED_UP: tuple[Callable[[Any, Any], Any], ...] = (
    lambda rows, customers: rows.join(customers.withColumnRenamed("city", "home"), sql.expr("customer = id"), "left"),
    lambda rows, customers: rows.join(customers.selectExpr("id AS customer", "city AS home"), "customer"),
    lambda rows, customers: rows.join(customers.where("city = 'city 1'"), sql.expr("customer = id"), "left_anti"),
    lambda rows, customers: rows.join(customers.groupBy("city").count(), "city", "left"),
)


def random_rows(random: Random) -> Pipeline:
    """Some steps over the orders, with or without a look at the customers."""
    steps = random.sample(STEPS, random.randint(1, 4))
    looked_up = random.choice((None, *LOOKED_UP))

    def transform(orders: Any, customers: Any) -> Any:
        rows = orders.withColumnRenamed("id", "order") if looked_up is not None else orders
        for step in steps:
            with suppress(ValueError):
                rows = step(rows.withColumnRenamed("order", "id")).withColumnRenamed("id", "order")
        return rows if looked_up is None else looked_up(rows, customers)

    return pipeline(name="random_rows", inputs=[ORDERS, CUSTOMERS], version="1")(transform)


@pytest.mark.parametrize("seed", range(TURNS))
def test_a_mart_of_rows_is_always_the_batch_query(
    seed: int, spark: Any, warehouse_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)

    def name(table: str) -> str:
        return f"delta.`{warehouse_settings.warehouse}/{table.replace('.', '/')}`"

    def add(first: int, count: int) -> None:
        orders = spark.createDataFrame(random_orders(random, first, count), ORDER_COLUMNS)
        orders = orders.selectExpr("*", "CAST(time AS TIMESTAMP) AS at").drop("time").coalesce(1)
        writer = orders.write.format("delta").mode("append").option("delta.enableDeletionVectors", str(with_vectors))
        writer.save(f"{warehouse_settings.warehouse}/{ORDERS.replace('.', '/')}")

    with_vectors = random.random() < 0.7
    add(0, 60)
    spark.sql(f"CREATE TABLE {name(CUSTOMERS)} (id string, city string) USING delta "
              "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")  # fmt: skip
    spark.sql(f"INSERT INTO {name(CUSTOMERS)} VALUES ('c1', 'city 1'), ('c2', 'city 2'), ('c3', 'city 1')")
    mart = random_rows(random)
    # Tables of this size are cheaper by the full query where a row went.
    monkeypatch.setattr(row_plan, "why_full_of_rows", lambda _work: "it is" if random.random() < 0.1 else None)
    roads = []
    materialize(mart, warehouse_settings, spark)
    for number in range(1, CHANGES + 1):
        for _ in range(random.randint(1, 2)):
            changed = random_change(random, number)
            # A change of what is looked up has the full query run, so that there are fewer of them.
            if changed is None or (changed[0] == CUSTOMERS and random.random() < 0.8):
                add(number * 100, random.randint(1, 8))
            else:
                spark.sql(changed[1].replace("TABLE", name(changed[0]), 1))
        if random.random() < 0.7:
            with stopped(random, monkeypatch, row_refresh), suppress(StoppedError):
                materialize(mart, warehouse_settings, spark)
        materialize(mart, warehouse_settings, spark)
        made = newest_made(TableLog(spark, f"{warehouse_settings.warehouse}/marts/random_rows"))
        assert made is not None
        assert made.stamp.refresh is not None
        roads.append(made.stamp.refresh.road)
        verdict = verify(mart, warehouse_settings, spark, schemas=None)  # type: ignore[arg-type]
        assert verdict.is_exact, (seed, roads, verdict)
    assert "rows" in roads, (seed, roads, made.stamp.refresh)
