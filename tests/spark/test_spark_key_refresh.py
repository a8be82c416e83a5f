"""Pipelines with a key: what changed is computed again, whatever road was taken the table is the batch query's."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import functions as sql
from pyspark.sql.window import Window
from shared_session import shared_session

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh, newest_made
from fluvial.tables import DeclarationError, Pipeline, pipeline
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan import refresh_cost
from fluvial.tables.plan.key_locality import check_key_locality, marked
from fluvial.tables.refresh import key_plan, key_refresh, obstacles, rows_here

pytestmark = pytest.mark.spark

ORDERS = "history.orders"
CUSTOMERS = "state.customers"
CITIES = "compacted.cities"
NO_SCHEMAS = cast("Any", None)
"""Pipelines read no contract."""


@pytest.fixture(autouse=True)
def tables_of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keys be cheaper, as a test's tables are too small for that, but in a test of costs."""
    if "costs" not in request.function.__name__:
        monkeypatch.setattr(key_plan, "why_full", lambda _work: None)


def path(settings: Settings, table: str) -> str:
    return f"{settings.warehouse}/{table.replace('.', '/')}"


def write(spark: Any, settings: Settings, table: str, query: str) -> None:
    """Add rows, in a commit of their own."""
    (
        spark.sql(query)
        .coalesce(1)
        .write.format("delta")
        .mode("append")
        .option("delta.enableDeletionVectors", "true")
        .save(path(settings, table))
    )


def change(spark: Any, settings: Settings, table: str, statement: str) -> None:
    """Run a statement of SQL, in which TABLE is the table."""
    spark.sql(statement.replace("TABLE", f"delta.`{path(settings, table)}`"))


@pytest.fixture(scope="module")
def written_once(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of each test, which gets a copy of them."""
    spark = shared_session(base_settings)
    settings = replace(base_settings, warehouse=str(tmp_path_factory.mktemp("inputs")))
    write(
        spark,
        settings,
        ORDERS,
        "SELECT CAST(id % 7 AS STRING) AS customer, CAST(id AS DOUBLE) AS amount, id FROM range(50)",
    )
    write(spark, settings, CUSTOMERS, "SELECT CAST(id AS STRING) AS id, concat('c', id % 3) AS city FROM range(6)")
    write(spark, settings, CITIES, "SELECT concat('c', id) AS city, concat('City ', id) AS name FROM range(3)")
    return Path(settings.warehouse)


@pytest.fixture
def inputs(written_once: Path, warehouse_settings: Settings) -> Settings:
    shutil.copytree(written_once, warehouse_settings.warehouse, dirs_exist_ok=True)
    return warehouse_settings


def made(spark: Any, settings: Settings, declaration: Pipeline) -> MartStamp:
    found = newest_made(TableLog(spark, path(settings, declaration.table)))
    assert found is not None
    return found.stamp


def road(spark: Any, settings: Settings, declaration: Pipeline) -> Refresh:
    refresh = made(spark, settings, declaration).refresh
    assert refresh is not None
    return refresh


def rows_of(frame: Any) -> list[str]:
    return sorted(map(str, frame.collect()))


def assert_is_batch(spark: Any, settings: Settings, declaration: Pipeline) -> None:
    """The table is what the transform makes of the versions that its stamp names."""
    frames = [
        spark.read.format("delta").option("versionAsOf", at.version).load(path(settings, table))
        for table, at in made(spark, settings, declaration).inputs.items()
    ]
    found = spark.read.format("delta").load(path(settings, declaration.table))
    assert rows_of(found) == rows_of(declaration(*frames).select(*found.columns))


def spend(orders: Any, customers: Any) -> Any:
    spent = orders.groupBy("customer").agg(
        sql.sum("amount").alias("spent"),
        sql.countDistinct("amount").alias("amounts"),
        sql.sort_array(sql.collect_list("id")).alias("ids"),
    )
    return spent.join(customers, spent.customer == customers.id, "left").select("customer", "spent", "amounts", "ids",
                                                                               "city")  # fmt: skip


spend_by_customer = pipeline(name="spend", inputs={ORDERS: "customer", CUSTOMERS: "id"}, key="customer", version="1")(
    spend
)


def test_only_the_rows_of_changed_keys_are_replaced(spark: Any, inputs: Settings) -> None:
    first = materialize(spend_by_customer, inputs, spark)
    assert (first.rows, road(spark, inputs, spend_by_customer).reason) == (7, "the table is new")
    assert materialize(spend_by_customer, inputs, spark).skipped

    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 100.5D AS amount, 1000L AS id")
    change(spark, inputs, CUSTOMERS, "UPDATE TABLE SET city = 'c9' WHERE id = '2'")
    change(spark, inputs, ORDERS, "DELETE FROM TABLE WHERE customer = '5'")
    second = materialize(spend_by_customer, inputs, spark)
    refresh = road(spark, inputs, spend_by_customer)
    assert (refresh.road, refresh.keys, refresh.reason) == ("keys", 3, None)
    assert second.rows == 3 + 2, "three rows went and two came"
    assert_is_batch(spark, inputs, spend_by_customer)
    assert materialize(spend_by_customer, inputs, spark).skipped


def test_files_written_together_change_no_key(spark: Any, inputs: Settings) -> None:
    materialize(spend_by_customer, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT NULL AS customer, 1D AS amount, 1001L AS id")
    change(spark, inputs, ORDERS, "OPTIMIZE TABLE")
    materialize(spend_by_customer, inputs, spark)
    assert road(spark, inputs, spend_by_customer).keys == 1, "null is a key like others"
    assert_is_batch(spark, inputs, spend_by_customer)


def test_verify_compares_with_the_batch_query_at_the_stamped_versions(spark: Any, inputs: Settings) -> None:
    materialize(spend_by_customer, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.1D AS amount, 1000L AS id")
    materialize(spend_by_customer, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT '4' AS customer, 7D AS amount, 1001L AS id")
    verdict = verify(spend_by_customer, inputs, spark, schemas=NO_SCHEMAS)
    assert (verdict.is_exact, verdict.rows, dict(verdict.inputs)) == (True, 7, {ORDERS: 1, CUSTOMERS: 0})
    assert verdict.close == ("spent",)

    change(spark, inputs, "marts.spend", "UPDATE TABLE SET spent = spent + 1e-6 WHERE customer = '3'")
    change(spark, inputs, "marts.spend", "UPDATE TABLE SET spent = spent + 1e-12 WHERE customer = '2'")
    change(spark, inputs, "marts.spend", "DELETE FROM TABLE WHERE customer = '1'")
    verdict = verify(spend_by_customer, inputs, spark, schemas=NO_SCHEMAS)
    assert [(each.where, each.what) for each in verdict.differences] == [
        ("customer 1", "is missing"),
        ("customer 3", "has other values"),
    ]
    materialize(spend_by_customer, inputs, spark)
    assert "is not fluvial's" in (road(spark, inputs, spend_by_customer).reason or "")
    assert_is_batch(spark, inputs, spend_by_customer)


def test_a_table_without_a_key_is_verified_by_its_rows(spark: Any, inputs: Settings) -> None:
    whole = pipeline(name="whole", inputs=[ORDERS], version="1")(lambda orders: orders.select("customer", "amount"))
    materialize(whole, inputs, spark)
    assert verify(whole, inputs, spark, schemas=NO_SCHEMAS).is_exact
    change(spark, inputs, "marts.whole", "UPDATE TABLE SET amount = amount + 1 WHERE customer = '3' AND amount = 3")
    verdict = verify(whole, inputs, spark, schemas=NO_SCHEMAS)
    assert [(each.where, each.what) for each in verdict.differences] == [("customer 3", "has other values")]


def test_a_row_of_a_key_that_did_not_change_is_no_answer(spark: Any, inputs: Settings) -> None:
    all_alike = pipeline(name="alike", inputs=[ORDERS], key="customer", version="1")(
        lambda orders: orders.groupBy("customer").applyInPandas(
            lambda rows: rows.head(1).assign(customer="0"), orders.schema
        )
    )
    materialize(all_alike, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.1D AS amount, 1000L AS id")
    with pytest.raises(DeclarationError, match=r"a row of a key that it had no rows of \(customer 0\)"):
        materialize(all_alike, inputs, spark)
    assert TableLog(spark, path(inputs, "marts.alike")).newest_version() == 0


@pytest.mark.rota
def test_only_files_that_may_hold_a_changed_key_are_read(spark: Any, inputs: Settings) -> None:
    for number in range(1, 4):
        write(
            spark,
            inputs,
            ORDERS,
            f"SELECT concat('{number} ', id) AS customer, 1D AS amount, {number}000 + id AS id FROM range(50)",
        )
    by_two = pipeline(name="two", inputs=[ORDERS], key=["customer", "amount"], version="1")(
        lambda orders: orders.groupBy("customer", "amount").agg(sql.max("id").alias("id"))
    )
    materialize(spend_by_customer, inputs, spark)
    materialize(by_two, inputs, spark)
    write(
        spark,
        inputs,
        ORDERS,
        "SELECT * FROM VALUES ('1 7', 5D, 9000L), ('1 7', 1D, 9001L), ('1 31', 1D, 9002L) AS t(customer, amount, id)",
    )
    (read, _) = explain(spend_by_customer, inputs, spark).reads
    assert read.files == (3, 5)
    assert "the rows of these keys in 3 of 5 files" in "\n".join(as_lines(explain(spend_by_customer, inputs, spark)))
    materialize(spend_by_customer, inputs, spark)
    materialize(by_two, inputs, spark)
    assert_is_batch(spark, inputs, spend_by_customer)
    assert_is_batch(spark, inputs, by_two)
    # Null is within no bounds.
    write(spark, inputs, ORDERS, "SELECT NULL AS customer, 5D AS amount, 9003L AS id")
    materialize(spend_by_customer, inputs, spark)
    write(
        spark, inputs, ORDERS, "SELECT * FROM VALUES (NULL, 6D, 9004L), ('3 1', 6D, 9005L) AS t(customer, amount, id)"
    )
    assert explain(spend_by_customer, inputs, spark).reads[0].files == (4, 7)
    materialize(spend_by_customer, inputs, spark)
    assert_is_batch(spark, inputs, spend_by_customer)


def test_the_costs_decide_and_the_commit_says_so(spark: Any, inputs: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    materialize(spend_by_customer, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.1D AS amount, 1000L AS id")
    materialize(spend_by_customer, inputs, spark)
    refresh = road(spark, inputs, spend_by_customer)
    assert refresh.road == "full"
    assert refresh.reason == "it is cheaper: 1 rows changed, the inputs have 57 rows and the table 7"
    assert refresh.costs is not None
    assert refresh.costs[0] > refresh.costs[1] == 57 + 7
    lines = as_lines(explain(spend_by_customer, inputs, spark))
    assert lines[0] == "marts.spend: nothing has changed"
    assert "why not better" not in "\n".join(lines)

    monkeypatch.setattr(refresh_cost, "FIXED_HERE", 0)
    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.1D AS amount, 1001L AS id")
    found = explain(spend_by_customer, inputs, spark)
    assert (found.road, found.costs) == ("keys", (19, 65))
    assert "by keys: 1 keys changed by 1 rows (cost by keys 19, of the full query 65)" in "\n".join(as_lines(found))
    write(spark, inputs, ORDERS, "SELECT CAST(id AS STRING) AS customer, 0.1D AS amount, 2000L AS id FROM range(6)")
    assert (explain(spend_by_customer, inputs, spark).reason or "").startswith("it is cheaper: 6 keys changed")
    assert_is_batch(spark, inputs, spend_by_customer)


def test_a_client_of_spark_connect_takes_the_full_query(
    spark: Any, inputs: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    materialize(spend_by_customer, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.1D AS amount, 1000L AS id")
    with monkeypatch.context() as as_client:
        for module in (obstacles, key_refresh):
            as_client.setattr(module, "is_client", lambda _session: True)
        reason = "a client of Spark Connect cannot read which rows changed"
        assert f"why not better: {reason}" in "\n".join(as_lines(explain(spend_by_customer, inputs, spark)))
        said: list[str] = []
        materialize(spend_by_customer, inputs, spark, progress=said.append)
        assert f"marts.spend: the full query, because {reason}" in said
    assert road(spark, inputs, spend_by_customer).reason == reason
    assert_is_batch(spark, inputs, spend_by_customer)


def test_explain_says_which_road_and_what_the_last_refresh_did(spark: Any, inputs: Settings) -> None:
    assert "the table is new" in "\n".join(as_lines(explain(spend_by_customer, inputs, spark)))
    materialize(spend_by_customer, inputs, spark)
    write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.1D AS amount, 1000L AS id")
    found = explain(spend_by_customer, inputs, spark)
    assert (found.road, found.keys, found.changed, found.reason) == ("keys", 1, 1, None)
    assert "reads history.orders version 1: the rows of these keys, changes since version 0" in "\n".join(
        as_lines(found)
    )
    materialize(spend_by_customer, inputs, spark)
    found = explain(spend_by_customer, inputs, spark)
    assert found.road == "none"
    assert found.last is not None
    assert (found.last.road, found.last.keys, found.last.rows, found.last.removed) == ("keys", 1, 1, 1)


def totals(orders: Any) -> Any:
    return orders.groupBy("customer").agg(sql.sum("amount").alias("spent"))


def by_customer(transform: Callable[..., Any], **inputs: Any) -> Pipeline:
    return pipeline(name="t", inputs=inputs or {ORDERS: "customer"}, key="customer", version="1")(transform)


def of_customer() -> Any:
    return Window.partitionBy("customer").orderBy("id")


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "global aggregate": (
        lambda orders: orders.crossJoin(orders.agg(sql.sum("amount").alias("all"))),
        "an aggregate is over rows of all keys: group by the key",
    ),
    "aggregate by another column": (
        lambda orders: orders.groupBy("id").agg(sql.max("customer").alias("customer")),
        "an aggregate is over rows of all keys",
    ),
    "rollup": (lambda orders: orders.rollup("customer").count(), "an aggregate is over rows of all keys"),
    "global window": (
        lambda orders: orders.select("customer", sql.row_number().over(Window.orderBy("id")).alias("n")),
        "a window is over rows of all keys: partition it by the key",
    ),
    "limit": (lambda orders: orders.limit(3), "a limit is over rows of all keys"),
    "sort": (lambda orders: orders.orderBy("id"), "a sort is over rows of all keys"),
    "distinct without the key": (
        lambda orders: orders.dropDuplicates(["amount"]),
        "dropDuplicates compares rows of all keys",
    ),
    "join by another column": (
        lambda orders: orders.join(orders.select("amount"), "amount").select("customer", "amount"),
        "a join brings rows of different customer together",
    ),
    "key changed": (
        lambda orders: totals(orders).withColumn("customer", sql.upper("customer")),
        "column customer of what it returns may differ",
    ),
    "key of the null side": (
        lambda orders: (
            orders.alias("o")
            .join(totals(orders).alias("t"), sql.expr("o.customer = t.customer AND o.id < 3"), "left")
            .groupBy(sql.col("t.customer").alias("customer"))
            .count()
        ),
        "an aggregate is over rows of all keys",
    ),
    "key not returned": (lambda orders: totals(orders).select("spent"), "customer is no column"),
    "random": (lambda orders: orders.withColumn("r", sql.rand()), "rand gives another value each time"),
    "uuid": (lambda orders: orders.withColumn("r", sql.expr("uuid()")), "uuid gives another value each time"),
    "time": (lambda orders: orders.withColumn("at", sql.current_timestamp()), "depend on when it runs"),
    "place of a row": (
        lambda orders: orders.groupBy("customer").agg(sql.max("_metadata.file_size")),
        "it names where rows lie (_metadata), which changes when files are written together",
    ),
    "unsorted list": (
        lambda orders: orders.groupBy("customer").agg(sql.collect_list("id")),
        "sort it, as in sort_array(collect_list(…))",
    ),
    "first": (lambda orders: orders.groupBy("customer").agg(sql.first("id")), "take min_by or max_by"),
    "python groups by another column": (
        lambda orders: orders.groupBy("id").applyInPandas(lambda rows: rows, orders.schema),
        "a Python function gets groups of all keys",
    ),
    "share of the total in SQL": (
        lambda orders: orders.sparkSession.sql(
            "SELECT customer, amount / (SELECT sum(amount) FROM {o}) AS share FROM {o}", o=orders
        ),
        "rows of all keys",
    ),
}


def test_what_looks_across_keys_is_refused_in_one_line_before_anything(spark: Any, inputs: Settings) -> None:
    for name, (transform, words) in REFUSED.items():
        with pytest.raises(DeclarationError) as refused:
            materialize(by_customer(transform), inputs, spark)
        assert words in str(refused.value), name
        assert "\n" not in str(refused.value), name
    assert TableLog(spark, path(inputs, "marts.t")).newest_version() is None


ACCEPTED: dict[str, Callable[..., Any]] = {
    "aggregate": totals,
    "renamed": lambda orders: (
        orders.withColumnRenamed("customer", "c").groupBy("c").count().withColumnRenamed("c", "customer")
    ),
    "window": lambda orders: orders.withColumn("n", sql.row_number().over(of_customer())).where("n < 3"),
    "self join": lambda orders: orders.join(totals(orders), "customer", "left"),
    "full join": lambda orders: totals(orders.where("id < 20")).join(
        orders.where("id > 10").groupBy("customer").count(), "customer", "full_outer"
    ),
    "union": lambda orders: orders.select("customer", "id").unionByName(orders.select("customer", "id")).distinct(),
    "python": lambda orders: orders.groupBy("customer").applyInPandas(
        lambda rows: rows.head(1)[["customer"]], "customer string"
    ),
    "sql": lambda orders: orders.sparkSession.sql(
        "WITH big AS (SELECT * FROM {o} WHERE amount > 3) SELECT customer, sort_array(collect_list(id)) AS ids "
        "FROM big WHERE customer IN (SELECT customer FROM VALUES ('1'), ('2') AS t(customer)) GROUP BY customer",
        o=orders,
    ),
    "pivot": lambda orders: (
        orders.withColumn("odd", sql.expr("id % 2 = 1"))
        .groupBy("customer")
        .pivot("odd", [True, False])
        .agg(sql.sum("amount"))
    ),
    "exploded": lambda orders: (
        orders.select("customer", sql.explode(sql.array("id", "amount")).alias("x")).groupBy("customer", "x").count()
    ),
}


def test_what_stays_within_the_key_is_accepted(spark: Any, inputs: Settings) -> None:
    orders = marked(spark.read.format("delta").load(path(inputs, ORDERS)), 0)
    for name, transform in ACCEPTED.items():
        try:
            check_key_locality(by_customer(transform), [orders], transform(orders))
        except DeclarationError as error:
            pytest.fail(f"{name}: {error}")


SPENT = by_customer(totals)
TO_SEVEN = "SELECT CAST(id AS STRING) AS customer, 1D AS amount, 1000 + id AS id FROM range(1, 8)"


def operations(spark: Any, settings: Settings, declaration: Pipeline) -> list[str]:
    log = TableLog(spark, path(settings, declaration.table))
    return [commit.operation for commit in log.newest_first()]


def test_a_small_table_is_replaced_by_costs_and_no_old_file_of_it_is_read(
    spark: Any, inputs: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    materialize(SPENT, inputs, spark)
    with monkeypatch.context() as cheap:
        cheap.setattr(key_plan, "why_full", lambda _work: None)
        write(spark, inputs, ORDERS, "SELECT '3' AS customer, 0.5D AS amount, 999L AS id")
        materialize(SPENT, inputs, spark)
    folder = Path(path(inputs, SPENT.table))
    assert [*folder.glob("deletion_vector_*")], "a row of the first file is marked as gone"

    write(spark, inputs, ORDERS, TO_SEVEN)
    change(spark, inputs, ORDERS, "DELETE FROM TABLE WHERE customer = '0'")
    for lost in (*folder.glob("deletion_vector_*"), *folder.glob("*.parquet")):
        lost.unlink()
    done = materialize(SPENT, inputs, spark)
    refresh = road(spark, inputs, SPENT)
    assert (refresh.road, done.rows) == ("full", 7)
    assert "it is cheaper" in str(refresh.reason)
    assert operations(spark, inputs, SPENT) == ["STREAMING UPDATE", "STREAMING UPDATE", "WRITE"]
    assert not [*folder.glob("deletion_vector_*")], "nothing is marked in files of which no row is left"
    assert_is_batch(spark, inputs, SPENT)
    table = spark.read.format("delta").load(str(folder))
    least, most = table.agg(sql.min("spent"), sql.max("spent")).first()
    spent = sorted(row.spent for row in table.collect())
    assert (least, most) == (spent[0], spent[-1]), "what the file says of its columns"
    assert table.where(table.spent >= most).count() == spent.count(most)


def test_a_table_behind_one_that_was_replaced_by_costs_reads_its_changes(spark: Any, inputs: Settings) -> None:
    behind = pipeline(name="behind", inputs={SPENT.table: "customer"}, key="customer", version="1")(
        lambda spent: spent.select("customer", (spent.spent * 2).alias("twice"))
    )
    for query in (None, TO_SEVEN):
        if query is not None:
            write(spark, inputs, ORDERS, query)
        materialize(SPENT, inputs, spark)
        materialize(behind, inputs, spark)
    assert road(spark, inputs, SPENT).road == "full"
    assert "it is cheaper" in str(road(spark, inputs, behind).reason)
    assert_is_batch(spark, inputs, behind)


def test_a_small_input_beside_a_large_one_is_read_by_spark_whatever_the_costs(
    spark: Any, inputs: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent_in = pipeline(name="spent_in", inputs={ORDERS: "customer", CITIES: None}, key="customer", version="1")(
        lambda orders, cities: totals(orders).join(cities, sql.expr("concat('c', customer) = city"), "left")
    )
    materialize(spent_in, inputs, spark)
    write(spark, inputs, ORDERS, TO_SEVEN)
    with monkeypatch.context() as smaller:
        # Fifty orders are many. Spark sends what it knows to be small to the tasks of a join.
        smaller.setattr(rows_here, "FEW_ROWS_MAX", 20)
        smaller.setattr(key_refresh, "whole_input", lambda *_: pytest.fail("it is read here"))
        materialize(spent_in, inputs, spark)
    assert road(spark, inputs, spent_in).road == "full"
    assert_is_batch(spark, inputs, spent_in)


def test_a_checkpoint_of_a_table_is_left_to_what_no_run_waits_for(spark: Any, inputs: Settings) -> None:
    later: list[Callable[[], None]] = []
    for number in range(9):
        write(spark, inputs, ORDERS, f"SELECT '3' AS customer, 0.5D AS amount, {1000 + number}L AS id")
        materialize(SPENT, inputs, spark, background=later.append)
        assert len(later) == 1 + number // 8, "every eighth version, from the first on"
    log = Path(path(inputs, SPENT.table)) / "_delta_log"
    assert not (log / "_last_checkpoint").exists()
    for work in later:
        work()
    assert [each.name for each in log.glob("*.checkpoint.parquet")] == [f"{8:020d}.checkpoint.parquet"]
