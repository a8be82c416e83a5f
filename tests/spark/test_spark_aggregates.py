"""Aggregates: a refresh from the changed rows alone makes what the batch query makes."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import functions as sql
from shared_session import shared_session

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import Refresh, newest_made
from fluvial.tables import (
    DeclarationError,
    Pipeline,
    aggregate,
    count,
    count_distinct,
    max_,
    mean,
    min_,
    pipeline,
    sum_,
    top,
)
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan.refresh_cost import FIXED_PARTS
from fluvial.tables.refresh import key_plan, part_refresh

pytestmark = pytest.mark.spark

ORDERS = "history.orders"
FIELDS = {
    "n": count(),
    "dear": count("amount > 20"),
    "paid": sum_("price"),
    "mean_id": mean("id", "amount > 1"),
    "low": min_("id"),
    "best": top("struct(amount, item)", 2),
    "items": count_distinct("item"),
}
spend = aggregate(ORDERS, name="spend", by={"who": "lower(customer)"}, fields=FIELDS, where="amount >= 0")
weights = aggregate(ORDERS, name="weights", by="customer", fields={"w": sum_("amount"), "hi": max_("id")})


@pytest.fixture(autouse=True)
def tables_of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have parts be cheaper, as a test's tables are too small for that, but in a test of costs."""
    if "costs" not in request.function.__name__:
        for module in (key_plan, part_refresh):
            monkeypatch.setattr(module, "why_full", lambda _work: None)


class Warehouse:
    """The orders, and what was made of them."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self.spark, self.settings = spark, settings

    def path(self, table: str) -> str:
        return f"{self.settings.warehouse}/{table.replace('.', '/')}"

    def add(self, rows: str, *, vectors: str = "true") -> None:
        frame = self.spark.sql(
            "SELECT customer, CAST(amount AS DOUBLE) AS amount, CAST(id AS BIGINT) AS id, concat('i', id % 5) AS item, "
            f"CAST(id / 3 AS DECIMAL(30, 2)) AS price FROM {rows}"
        )
        writer = frame.coalesce(1).write.format("delta").mode("append").option("delta.enableDeletionVectors", vectors)
        writer.save(self.path(ORDERS))

    def change(self, statement: str) -> None:
        self.spark.sql(statement.format(orders=f"delta.`{self.path(ORDERS)}`"))

    def refresh(self, declaration: Pipeline) -> Refresh:
        materialize(declaration, self.settings, self.spark)
        made = newest_made(TableLog(self.spark, self.path(declaration.table)))
        assert made is not None
        assert made.stamp.refresh is not None
        return made.stamp.refresh

    def is_exact(self, declaration: Pipeline) -> bool:
        verdict = verify(declaration, self.settings, self.spark, schemas=cast("Any", None))
        return verdict.is_exact

    def row(self, declaration: Pipeline, where: str) -> Any:
        (row,) = self.spark.read.format("delta").load(self.path(declaration.table)).where(where).collect()
        return row


@pytest.fixture(scope="module")
def written_once(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The orders of each test, which gets a copy of them."""
    settings = replace(base_settings, warehouse=str(tmp_path_factory.mktemp("orders")))
    warehouse = Warehouse(shared_session(base_settings), settings)
    warehouse.add("(SELECT id, id AS amount, concat('C', id % 7) AS customer FROM range(50))")
    return Path(settings.warehouse)


@pytest.fixture
def orders(spark: Any, written_once: Path, warehouse_settings: Settings) -> Warehouse:
    shutil.copytree(written_once, warehouse_settings.warehouse, dirs_exist_ok=True)
    return Warehouse(spark, warehouse_settings)


@pytest.mark.rota
def test_changed_rows_alone_make_what_the_batch_query_makes(orders: Warehouse) -> None:
    assert orders.refresh(spend).reason == "the table is new"
    orders.add("VALUES ('C3', 100, 1000), ('new', 1, 1001), ('new', 5, 1006), ('C3', -1, 1002), (null, 3, 1003)"
               " AS t(customer, amount, id)")  # fmt: skip
    explained = "\n".join(as_lines(explain(spend, orders.settings, orders.spark)))
    assert "from the changed rows alone, about 5" in explained
    assert "reads history.orders version 1: the rows that came and went, changes since version 0" in explained
    assert "reads again low: the rows of a key whose least value may have gone" in explained
    refresh = orders.refresh(spend)
    assert (refresh.road, refresh.keys, refresh.changed, refresh.again) == ("parts", 3, 4, 0)
    row = orders.row(spend, "who = 'new'")
    assert (row.n, row.dear, row.low, row["items"], row.best[0].amount) == (2, 0, 1001, 1, 5)
    assert orders.is_exact(spend)

    # A key that is gone, one whose least value is, and one that only lost a row in between.
    orders.change("DELETE FROM {orders} WHERE customer = 'C5' OR id IN (2, 16)")
    refresh = orders.refresh(spend)
    assert (refresh.road, refresh.keys, refresh.again) == ("parts", 2, 1)
    assert orders.is_exact(spend)
    assert "1 keys read again" in "\n".join(as_lines(explain(spend, orders.settings, orders.spark)))


@pytest.mark.rota
def test_rows_that_only_came_are_merged_without_reading_what_was_there(orders: Warehouse) -> None:
    here = aggregate(ORDERS, name="here", by="customer", fields={"n": count(), "m": mean("id"), "hi": max_("item"),
                                                                 "items": count_distinct("item")})  # fmt: skip
    grouped = pipeline(name="grouped", inputs=[ORDERS], key="customer", version="1")(
        lambda rows: rows.where("id > 1").groupBy("customer").agg(sql.sum("id").alias("ids"), sql.min("id").alias("lo"))
    )
    for mart in (here, grouped):
        orders.refresh(mart)
    before = {*Path(orders.path(ORDERS)).glob("*.parquet")}
    orders.add("VALUES ('C3', 100, 1000), ('new', 1, 1001), (null, 5, 1006), (null, 5, 1) AS t(customer, amount, id)")
    hidden = {file: file.rename(file.with_suffix(".hidden")) for file in before}
    explained = ["\n".join(as_lines(explain(mart, orders.settings, orders.spark))) for mart in (here, grouped)]
    assert all("reads history.orders version 1: the rows that came and went" in each for each in explained)
    refreshed = [orders.refresh(mart) for mart in (here, grouped)]
    assert [(each.road, each.keys, each.changed, each.again) for each in refreshed] == [
        ("parts", 3, 4, 0),
        ("keys", 3, 4, None),
    ]
    for file, away in hidden.items():
        away.rename(file)
    assert all(orders.is_exact(mart) for mart in (here, grouped))

    # Once a row went, a minimum is to be found among those that are left.
    orders.change("DELETE FROM {orders} WHERE id = 2")
    assert orders.refresh(grouped).road == "keys"
    assert orders.row(grouped, "customer = 'C2'").lo == 9
    assert orders.is_exact(grouped)


def test_rows_that_are_written_to_another_file_are_no_change(orders: Warehouse) -> None:
    orders.change("ALTER TABLE {orders} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    orders.refresh(weights)
    # The whole file is written again.
    orders.change("UPDATE {orders} SET amount = amount + 1 WHERE id = 8")
    refresh = orders.refresh(weights)
    assert (refresh.road, refresh.keys, refresh.changed, refresh.again) == ("parts", 1, 2, 1)
    assert orders.is_exact(weights)


def test_numbers_that_are_none_stay_as_long_as_their_rows(orders: Warehouse) -> None:
    near = aggregate(ORDERS, name="near", by="customer", fields={"w": sum_("amount")}, approximate=True)
    orders.add("VALUES ('C1', double('NaN'), 2001), ('C2', double('Infinity'), 2002) AS t(customer, amount, id)")
    orders.refresh(near)
    assert str(orders.row(near, "customer = 'C1'").w) == "nan"
    orders.change("DELETE FROM {orders} WHERE id IN (2001, 2002, 4)")
    assert orders.refresh(near).again == 2, "from that of C4 its number is taken"
    assert orders.is_exact(near)


def test_the_costs_decide_before_and_on_the_way(orders: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.refresh(weights)
    orders.add("VALUES ('C3', 100, 1000) AS t(customer, amount, id)")
    refresh = orders.refresh(weights)
    assert refresh.reason == "it is cheaper: 1 rows changed, the inputs have 51 rows and the table 7"
    assert refresh.costs is not None
    assert refresh.costs[0] > refresh.costs[1]

    monkeypatch.setattr(key_plan, "why_full", lambda _work: None)
    orders.change("DELETE FROM {orders} WHERE id IN (3, 45)")
    refresh = orders.refresh(weights)
    assert refresh.road == "full"
    assert "the rows of so many keys would have to be read again" in (refresh.reason or "")
    assert orders.is_exact(weights)


def test_parts_that_the_driver_does_not_make_are_weighed_as_sparks(orders: Warehouse) -> None:
    fields = {"here": max_("id"), "tops": top("id", 2), "doubles": max_("amount")}
    marts = [aggregate(ORDERS, name=name, by="customer", fields={"it": field}) for name, field in fields.items()]
    for mart in marts:
        orders.refresh(mart)
    orders.add("VALUES ('C3', 100, 1000) AS t(customer, amount, id)")
    costs = [orders.refresh(mart).costs for mart in marts]
    assert [each is not None and each[0] > FIXED_PARTS for each in costs] == [False, True, True]


REFUSED = {
    "field f: sum(item) is of string, which is no number: cast it": sum_("item"),
    "rand gives another value each time": count("rand() > 0.5"),
    "depend on when it runs": count("current_date() > '2025-01-01'"),
    "MISSING_GROUP_BY": sum_("sum(amount)"),
    "a window is over rows of all keys": max_("row_number() OVER (ORDER BY id)"),
    "does not fit its inputs": max_("no_such_column"),
}


def test_what_is_not_of_a_row_alone_is_refused_in_one_line(orders: Warehouse) -> None:
    for said, field in REFUSED.items():
        with pytest.raises(DeclarationError) as refused:
            orders.refresh(aggregate(ORDERS, name="wrong", by="customer", fields={"f": field}))
        assert said in str(refused.value), said
        assert "\n" not in str(refused.value), said
