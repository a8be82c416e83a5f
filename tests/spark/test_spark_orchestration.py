"""
Dagster's assets on Spark: where a pipeline's columns come from, and frames of one's own kept as tables.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from fluvial.config import Settings
from fluvial.orchestration import DeltaIOManager, SparkResource
from fluvial.orchestration.assets.delta_io import DeltaFrameError
from fluvial.spark.lineage import column_sources
from fluvial.spark.warehouse import Warehouse

pytestmark = [
    pytest.mark.spark,
    # Dagster asks itself for it when a resource has another.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def joined(orders: Any, planes: Any) -> Any:
    return orders.join(planes, "id").selectExpr("id", "amount * seats AS places", "'x' AS fixed")


def grouped(orders: Any, planes: Any) -> Any:
    return orders.where("amount > 1").groupBy("kind").agg({"amount": "sum"})


def united(orders: Any, planes: Any) -> Any:
    return orders.select("id").union(planes.selectExpr("seats"))


def with_itself(orders: Any, planes: Any) -> Any:
    later = orders.selectExpr("id AS other", "kind AS other_kind")
    return orders.join(later, orders.id == later.other).select("id", "other_kind")


def ranked(orders: Any, planes: Any) -> Any:
    return orders.selectExpr("id", "row_number() OVER (PARTITION BY kind ORDER BY amount) AS place")


@pytest.mark.parametrize(
    ("transform", "sources"),
    [
        (joined, {"id": ["orders.id"], "places": ["orders.amount", "planes.seats"], "fixed": []}),
        (grouped, {"kind": ["orders.kind"], "sum(amount)": ["orders.amount"]}),
        (united, {"id": ["orders.id", "planes.seats"]}),
        (with_itself, {"id": ["orders.id"], "other_kind": ["orders.kind"]}),
        (ranked, {"id": ["orders.id"], "place": ["orders.amount", "orders.kind"]}),
    ],
)
def test_spark_tells_what_a_column_is_made_from(
    spark: Any, transform: Callable[..., Any], sources: dict[str, list[str]]
) -> None:
    orders = spark.createDataFrame([], "id INT, kind STRING, amount INT")
    planes = spark.createDataFrame([], "id INT, seats INT")
    found = column_sources(transform(orders, planes), {"orders": orders, "planes": planes})
    assert {column: [".".join(source) for source in each] for column, each in found.items()} == sources


def run(settings: Settings, *assets: dg.AssetsDefinition, **options: Any) -> dg.ExecuteInProcessResult:
    spark = SparkResource.of(settings)
    resources = {"spark": spark, "io_manager": DeltaIOManager(spark=spark)}
    return dg.materialize(assets, resources=resources, run_config=QUIET, **options)


def table(spark: Any, settings: Settings, name: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(Warehouse.at(settings.warehouse).path(name))
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_frames_of_all_kinds_are_kept_and_given_as_they_are_asked_for(spark: Any, warehouse_settings: Settings) -> None:
    seen: list[Any] = []

    @dg.asset(key=["marts", "numbers"])
    def numbers() -> pa.Table:
        return pa.table({"n": [1, 2, 3]})

    @dg.asset(key=["marts", "doubled"], ins={"numbers": dg.AssetIn(key=["marts", "numbers"])})
    def doubled(numbers):  # type: ignore[no-untyped-def]
        return numbers.selectExpr("n * 2 AS n")

    @dg.asset(key=["marts", "total"], ins={"doubled": dg.AssetIn(key=["marts", "doubled"])})
    def total(doubled: pa.Table) -> pa.Table:
        seen.append(type(doubled))
        return pa.table({"total": [sum(doubled["n"].to_pylist())]})

    result = run(warehouse_settings, numbers, doubled, total)
    assert result.success
    assert seen == [pa.Table]
    assert table(spark, warehouse_settings, "marts.total") == [(12,)]
    (told,) = result.asset_materializations_for_node("marts__doubled")
    assert (told.metadata["rows"].value, told.metadata["delta_version"].value) == (3, 0)


def test_a_partition_is_put_in_the_place_of_itself_and_new_columns_are_added(
    spark: Any, warehouse_settings: Settings
) -> None:
    columns = ["day", "n"]

    @dg.asset(
        key=["marts", "daily"],
        partitions_def=dg.DailyPartitionsDefinition("2025-01-01", end_date="2025-01-04"),
        metadata={"partition_expr": "day"},
    )
    def daily(context: dg.AssetExecutionContext) -> pa.Table:
        values = {"day": [datetime.fromisoformat(context.partition_key)], "n": [len(columns)], "more": ["x"]}
        return pa.table({name: values[name] for name in columns})

    for key in ("2025-01-02", "2025-01-01"):
        assert run(warehouse_settings, daily, partition_key=key).success
    columns.append("more")
    for _ in range(2):
        assert run(warehouse_settings, daily, partition_key="2025-01-02").success
    rows = table(spark, warehouse_settings, "marts.daily")
    assert [(row[0].day, *row[1:]) for row in rows] == [(1, 2, None), (2, 3, "x")]


def test_what_is_no_frame_or_no_table_is_named(warehouse_settings: Settings) -> None:
    @dg.asset(key=["marts", "answer"])
    def answer() -> int:
        return 42

    @dg.asset(key=["answer"])
    def nowhere() -> pa.Table:
        return pa.table({"n": [1]})

    for asset, complaint in ((answer, "the asset returned int"), (nowhere, "give it the key <database>/<name>")):
        with pytest.raises(DeltaFrameError, match=complaint):
            run(warehouse_settings, asset)
