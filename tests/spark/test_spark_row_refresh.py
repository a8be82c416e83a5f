"""Pipelines without a key whose rows are each made of one row: only what the changed rows lead to is written."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import functions as sql
from shared_session import shared_session

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh, newest_made
from fluvial.tables import Pipeline, pipeline
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan.key_locality import marked
from fluvial.tables.plan.row_by_row import look_row_by_row
from fluvial.tables.refresh import row_plan

pytestmark = pytest.mark.spark

ORDERS, RETURNS, CITIES = "history.orders", "history.returns", "compacted.cities"
NO_SCHEMAS = cast("Any", None)
"""Pipelines read no contract."""


@pytest.fixture(autouse=True)
def tables_of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows be cheaper, as a test's tables are too small for that, but in a test of costs."""
    if "costs" not in request.function.__name__:
        monkeypatch.setattr(row_plan, "why_full_of_rows", lambda _work: None)


def path(settings: Settings, table: str) -> str:
    return f"{settings.warehouse}/{table.replace('.', '/')}"


def write(spark: Any, settings: Settings, table: str, query: str) -> None:
    """Add rows, in a commit of their own."""
    rows = spark.sql(query).coalesce(1).write.format("delta").mode("append")
    rows.option("delta.enableDeletionVectors", "true").save(path(settings, table))


def change(spark: Any, settings: Settings, table: str, statement: str) -> None:
    """Run a statement of SQL, in which TABLE is the table."""
    spark.sql(statement.replace("TABLE", f"delta.`{path(settings, table)}`"))


def orders(first: int, count: int) -> str:
    return (
        f"SELECT id, concat('c', id % 3) AS city, id % 5 AS amount, array('a', concat('t', id % 2)) AS tags, "
        f"map('k', id) AS extra FROM range({first}, {first + count})"
    )


@pytest.fixture(scope="module")
def written_once(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of each test, which gets a copy of them."""
    spark = shared_session(base_settings)
    settings = replace(base_settings, warehouse=str(tmp_path_factory.mktemp("inputs")))
    write(spark, settings, ORDERS, orders(0, 40))
    write(spark, settings, RETURNS, "SELECT id, 'c1' AS city, 1L AS amount FROM range(5)")
    write(spark, settings, CITIES, "SELECT concat('c', id) AS city, concat('City ', id) AS name FROM range(2)")
    return Path(settings.warehouse)


@pytest.fixture
def inputs(written_once: Path, warehouse_settings: Settings) -> Settings:
    shutil.copytree(written_once, warehouse_settings.warehouse, dirs_exist_ok=True)
    return warehouse_settings


def made(spark: Any, settings: Settings, declaration: Pipeline) -> MartStamp:
    found = newest_made(TableLog(spark, path(settings, declaration.table)))
    assert found is not None
    return found.stamp


def refreshed(spark: Any, settings: Settings, declaration: Pipeline) -> Refresh:
    """Bring the table up to date; it must be the batch query's, whatever the road."""
    materialize(declaration, settings, spark)
    stamp = made(spark, settings, declaration)
    frames = [
        spark.read.format("delta").option("versionAsOf", at.version).load(path(settings, table))
        for table, at in stamp.inputs.items()
    ]
    found = spark.read.format("delta").load(path(settings, declaration.table))
    expected = declaration(*frames).select(*found.columns)
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
    assert stamp.refresh is not None
    return stamp.refresh


def tagged(orders: Any, cities: Any) -> Any:
    """Of a large order a row each tag: two orders may lead to rows that are alike."""
    large = orders.where("amount > 1").join(sql.broadcast(cities), "city", "left")
    return large.select("name", "amount", sql.explode("tags").alias("tag"))


by_tag = pipeline(name="by_tag", inputs=[ORDERS, CITIES], version="1")(tagged)


@pytest.mark.rota
def test_new_rows_are_appended_and_rows_that_went_take_theirs_along(spark: Any, inputs: Settings) -> None:
    assert refreshed(spark, inputs, by_tag).reason == "the table is new"
    log = TableLog(spark, path(inputs, by_tag.table))

    write(spark, inputs, ORDERS, orders(40, 10))
    write(spark, inputs, ORDERS, orders(50, 2))
    refresh = refreshed(spark, inputs, by_tag)
    assert (refresh.road, refresh.changed, refresh.reason) == ("rows", 12, None)
    assert "remove" not in log.data_changes(1)
    assert materialize(by_tag, inputs, spark).skipped

    before = spark.read.format("delta").load(log.path).count()
    change(spark, inputs, ORDERS, "DELETE FROM TABLE WHERE id = 13 OR id = 0")
    refresh = refreshed(spark, inputs, by_tag)
    stamp = made(spark, inputs, by_tag)
    assert (refresh.road, refresh.changed, stamp.removed) == ("rows", 2, 2), "of order 13, two tags"
    assert spark.read.format("delta").load(log.path).count() == before - 2

    change(spark, inputs, ORDERS, "UPDATE TABLE SET amount = 4 WHERE id IN (1, 2)")
    write(spark, inputs, ORDERS, orders(60, 1))
    change(spark, inputs, ORDERS, "DELETE FROM TABLE WHERE id = 60")
    assert refreshed(spark, inputs, by_tag).road == "rows"
    verdict = verify(by_tag, inputs, spark, schemas=NO_SCHEMAS)
    assert (verdict.is_exact, dict(verdict.inputs)) == (True, {ORDERS: 6, CITIES: 0})

    change(spark, inputs, ORDERS, "OPTIMIZE TABLE")
    assert (refreshed(spark, inputs, by_tag).road, made(spark, inputs, by_tag).removed) == ("rows", 0)
    change(spark, inputs, CITIES, "UPDATE TABLE SET name = 'other' WHERE city = 'c1'")
    refresh = refreshed(spark, inputs, by_tag)
    assert (refresh.road, refresh.reason) == (
        "full",
        "an outer join (LeftOuter) keeps rows of a table that is looked up",
    )


@pytest.mark.rota
def test_files_that_are_rewritten_cancel_out(spark: Any, inputs: Settings) -> None:
    """Without deletion vectors a changed row has all rows of its file go and come again."""
    spark.sql(f"ALTER TABLE delta.`{path(inputs, ORDERS)}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    maps = pipeline(name="maps", inputs=[ORDERS], version="1")(
        lambda rows: rows.where("id > 3").select("amount", "extra")
    )
    refreshed(spark, inputs, maps)
    change(spark, inputs, ORDERS, "UPDATE TABLE SET amount = 9 WHERE id = 7")
    refresh = refreshed(spark, inputs, maps)
    assert (refresh.road, made(spark, inputs, maps).removed) == ("rows", 1)


@pytest.mark.rota
def test_a_union_follows_all_of_its_inputs(spark: Any, inputs: Settings) -> None:
    both = pipeline(name="both", inputs=[ORDERS, RETURNS], version="1")(
        lambda orders, returns: orders.select("id", "amount").union(returns.selectExpr("id", "-amount"))
    )
    refreshed(spark, inputs, both)
    write(spark, inputs, RETURNS, "SELECT 7L AS id, 'c1' AS city, 3L AS amount")
    change(spark, inputs, ORDERS, "DELETE FROM TABLE WHERE id = 7")
    assert refreshed(spark, inputs, both).road == "rows"
    assert made(spark, inputs, both).removed == 1


@pytest.mark.rota
def test_a_table_that_somebody_changed_is_written_whole(spark: Any, inputs: Settings) -> None:
    refreshed(spark, inputs, by_tag)
    change(spark, inputs, "marts.by_tag", "DELETE FROM TABLE WHERE amount = 4")
    write(spark, inputs, ORDERS, orders(40, 1))
    assert "is not fluvial's" in (refreshed(spark, inputs, by_tag).reason or "")


def test_what_a_transform_fetches_while_it_is_called_is_seen(spark: Any, inputs: Settings) -> None:
    def above_mean(orders: Any) -> Any:
        return orders.select("id").where(orders.amount > orders.agg(sql.avg("amount")).collect()[0][0])

    shares = pipeline(name="shares", inputs=[ORDERS], version="1")(above_mean)
    refreshed(spark, inputs, shares)
    write(
        spark,
        inputs,
        ORDERS,
        "SELECT 100L AS id, 'c1' AS city, 400L AS amount, array('a') AS tags, map('k', 1L) AS extra",
    )
    refresh = refreshed(spark, inputs, shares)
    assert (refresh.road, refresh.reason) == (
        "full", "the plan of the transform is another one than when the table was written"
    )  # fmt: skip


def test_a_small_table_that_is_made_whole_is_replaced_unless_its_columns_are_others(
    spark: Any, inputs: Settings
) -> None:
    def by_city(version: str, comment: dict[str, str]) -> Pipeline:
        return pipeline(name="by_city", inputs=[ORDERS, RETURNS], version=version)(
            lambda orders, returns: (
                orders.select("city", "amount")
                .unionAll(returns.select("city", "amount"))
                .groupBy("city")
                .agg(sql.sum("amount").alias("amount", metadata=comment))
            )
        )

    def operations() -> list[str]:
        return [each.operation for each in TableLog(spark, path(inputs, "marts.by_city")).newest_first()]

    refreshed(spark, inputs, by_city("1", {}))
    write(spark, inputs, ORDERS, orders(40, 5))
    assert refreshed(spark, inputs, by_city("1", {})).road == "full"
    assert operations() == ["STREAMING UPDATE", "WRITE"]
    refreshed(spark, inputs, by_city("2", {"comment": "of all orders"}))
    assert operations() == ["WRITE", "STREAMING UPDATE", "WRITE"]
    assert spark.read.format("delta").load(path(inputs, "marts.by_city")).schema["amount"].metadata["comment"]
    write(spark, inputs, ORDERS, orders(45, 5))
    refreshed(spark, inputs, by_city("2", {"comment": "of all orders"}))
    assert operations()[:2] == ["STREAMING UPDATE", "WRITE"]


def test_where_rows_lie_is_no_part_of_them(spark: Any, inputs: Settings) -> None:
    placed = pipeline(name="placed", inputs=[ORDERS], version="1")(
        lambda rows: rows.select("id", "_metadata.file_name")
    )
    refreshed(spark, inputs, placed)
    write(spark, inputs, ORDERS, orders(40, 1))
    assert "names where rows lie" in (refreshed(spark, inputs, placed).reason or "")


@pytest.mark.rota
def test_the_costs_decide(spark: Any, inputs: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(spark, inputs, by_tag)
    write(spark, inputs, ORDERS, orders(30, 1))
    change(spark, inputs, ORDERS, "DELETE FROM TABLE WHERE id = 4")
    refresh = refreshed(spark, inputs, by_tag)
    assert (refresh.road, refresh.reason) == (
        "full", "it is cheaper: 2 rows changed, the inputs have 40 rows and the table 48"
    )  # fmt: skip
    write(spark, inputs, ORDERS, orders(40, 1))
    monkeypatch.setattr(row_plan, "why_full_of_rows", lambda _work: "it is cheaper: so it is")
    refresh = refreshed(spark, inputs, by_tag)
    assert (refresh.road, refresh.reason, refresh.costs) == ("full", "it is cheaper: so it is", (1, 41 + 46))


def test_explain_says_which_road_and_why_no_better_one(spark: Any, inputs: Settings) -> None:
    def lines(declaration: Pipeline) -> list[str]:
        return as_lines(explain(declaration, inputs, spark))

    refreshed(spark, inputs, by_tag)
    write(spark, inputs, ORDERS, orders(40, 3))
    assert lines(by_tag)[:4] == [
        "marts.by_tag: the changed rows alone, about 3 (cost of it 3, of the full query 91)",
        "  reads history.orders version 1: the rows that came and went, changes since version 0",
        "  reads compacted.cities version 0: the whole of it",
        "  a change of compacted.cities runs the full query: an outer join (LeftOuter) keeps rows of a table that is "
        "looked up",
    ]
    materialize(by_tag, inputs, spark)
    assert lines(by_tag)[0] == "marts.by_tag: nothing has changed"
    assert "last refresh, version 1: 3 changed rows; " in lines(by_tag)[-1]

    counted = pipeline(name="counted", inputs=[ORDERS], version="1")(lambda orders: orders.groupBy("city").count())
    refreshed(spark, inputs, counted)
    write(spark, inputs, ORDERS, orders(50, 3))
    why = 'an aggregate looks at other rows than the one that changed: with key="…" only the rows of keys that changed'
    assert lines(counted)[1].startswith(f"  why not better: {why}")


@pytest.mark.rota
def test_a_pinned_input_is_read_at_its_version(spark: Any, inputs: Settings) -> None:
    def declared(version: int) -> Pipeline:
        declare = pipeline(name="pinned", inputs=[ORDERS, CITIES], pinned={CITIES: version}, version="1")
        return cast("Pipeline", declare(tagged))

    refreshed(spark, inputs, declared(0))
    change(spark, inputs, CITIES, "UPDATE TABLE SET name = 'other' WHERE city = 'c1'")
    assert materialize(declared(0), inputs, spark).skipped, "the version that it is made from has not changed"
    write(spark, inputs, ORDERS, orders(40, 1))
    assert refreshed(spark, inputs, declared(0)).road == "rows"
    assert refreshed(spark, inputs, declared(1)).road == "full"
    assert "read at version 0, which is an earlier one" in (refreshed(spark, inputs, declared(0)).reason or "")
    with pytest.raises(TableError, match=r"reads version 7 of compacted.cities, whose newest is 1"):
        materialize(declared(7), inputs, spark)


def rest(column: str) -> Any:
    return sql.udf(lambda value: value, "bigint").asNondeterministic()(column)


@pytest.mark.parametrize(
    ("transform", "changed", "why"),
    [
        (lambda o, c: o.mapInPandas(lambda rows: rows, "id bigint"), [0], None),
        (lambda o, c: o.join(c.groupBy("city").count(), "city", "left_anti").sort("id"), [0], None),
        (lambda o, c: c.join(o, "city", "right"), [0], None),
        (lambda o, c: o.where("city IN ('c1', 'c2')").withColumn("n", sql.expr("transform(tags, t -> t || 1)")),
         [0], None),
        (lambda o, c: o.join(o.select("id"), "id"), [0], "a join brings rows together"),
        (lambda o, c: o.join(c, "city"), [0, 1], "a join brings rows together"),
        (lambda o, c: o.join(c, "city", "full"), [0], "an outer join (FullOuter)"),
        (lambda o, c: c.join(o, "city", "left_semi"), [0], "an outer join (LeftSemi)"),
        (lambda o, c: o.select("city").union(c.select("city")), [0], "a union adds rows"),
        (lambda o, c: o.limit(3), [0], "a limit looks at"),
        (lambda o, c: o.join(c.limit(1), "city"), [0], "LocalLimit may keep"),
        (lambda o, c: o.select("id").distinct(), [0], "distinct looks at"),
        (lambda o, c: o.dropDuplicates(["city"]), [0], "distinct looks at"),
        (lambda o, c: o.withColumn("n", sql.expr("sum(id) OVER (PARTITION BY city)")), [0], "a window looks at"),
        (lambda o, c: o.where(sql.rand() > 0.5), [0], "rand gives another value"),
        (lambda o, c: o.withColumn("at", sql.current_timestamp()), [0], "its rows depend on when it runs"),
        (lambda o, c: o.select(rest("id")), [0], "gives another value each time"),
        (lambda o, c: o.join(o.sparkSession.createDataFrame([("c1",)], "city string"), "city"), [0], "of no input"),
    ],
)  # fmt: skip
def test_what_may_be_applied_to_changed_rows_alone(
    transform: Callable[[Any, Any], Any], changed: list[int], why: str | None, spark: Any
) -> None:
    one = marked(spark.sql(orders(0, 3)), 0)
    other = marked(spark.sql("SELECT 'c1' AS city, 'City' AS name"), 1)
    found = look_row_by_row(transform(one, other), changed, (ORDERS, CITIES))
    assert found.plan is not None
    assert found.refusal is None if why is None else why in (found.refusal or "")
