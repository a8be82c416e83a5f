"""Suites as asset checks: Dagster, Great Expectations, Spark and Delta, all of them real."""

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from fluvial.config import Settings
from fluvial.delta.commit import append
from fluvial.delta.stamp import Stamp
from fluvial.orchestration import SparkResource, assets_for, checks_for, contract_suites
from fluvial.orchestration.run.progress import CheckFinished, MaterializationError, RunSummary, Status
from fluvial.orchestration.run.run import materialize_all
from fluvial.quality import Scope, Suite, engine, expectations, kept_table, table_check
from fluvial.registry.contracts import Contract
from fluvial.spark.session import register_table
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, History, history, pipeline
from fluvial.tables.plan.result import RunResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["PAID", "SENT"]}},
        {"name": "customer", "type": ["null", "string"], "default": None},
    ],
}


SHOWN = ("delta_version", "rows", "failing_in_table", "failing_in_batch")


class Shop:
    """A project with one history, whose runs write the batches a test gives, and a table that reads it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # A name of its own: the tests of a session share one catalog.
        self.orders = history("orders", name=f"orders_{uuid.uuid4().hex[:8]}")
        self.batches: list[list[str | None]] = []
        self.written = 0

        @pipeline(name="busiest", inputs=[self.orders.table])
        def busiest(orders: Any) -> Any:
            return orders

        self.declarations: dict[str, Declaration] = {each.table: each for each in (self.orders, busiest)}

    def run(self, declaration: Declaration, settings: Settings, spark: "SparkSession", **_: Any) -> RunResult:
        """Append the next batch, one record of partition 0 for each status, as the runner of histories does."""
        version = self.written - 1 if self.written else None
        if not isinstance(declaration, History) or self.written == len(self.batches):
            kept = version if isinstance(declaration, History) else None
            return RunResult(table=declaration.table, kind="", skipped=True, version_before=kept, version_after=kept)
        start = sum(map(len, self.batches[: self.written]))
        statuses = self.batches[self.written]
        rows = spark.createDataFrame(
            [(status, 0, start + place) for place, status in enumerate(statuses)],
            "status STRING, _partition INT, _offset LONG",
        )
        offsets = {0: (start, start + len(statuses))}
        path = Warehouse.at(settings.warehouse).path(declaration.table)
        append(rows, path, Stamp(topic="orders", topic_id=None, batch=self.written + 1, offsets=offsets))
        register_table(spark, declaration.table, path)
        self.written += 1
        return RunResult(
            table=declaration.table,
            kind="history",
            skipped=False,
            version_before=version,
            version_after=self.written - 1,
            rows=len(statuses),
        )

    def materialize(self, *suites: Suite) -> RunSummary:
        definitions = dg.Definitions(
            assets=assets_for(self.declarations, run=self.run),
            asset_checks=checks_for(suites),
            resources={"spark": SparkResource()},
        )
        return materialize_all(self.settings, definitions=definitions)


@pytest.fixture
def shop(spark: "SparkSession", spark_settings: Settings, tmp_path: Path) -> Shop:
    return Shop(replace(spark_settings, data_dir=tmp_path, warehouse=str(tmp_path / "warehouse")))


def known_status(shop: Shop, *, blocking: bool = False, scope: Scope = Scope.BATCH) -> Suite:
    @expectations(shop.orders.table, blocking=blocking, scope=scope)
    def known_status(gxe: Any) -> list[Any]:
        return [gxe.ExpectColumnValuesToBeInSet(column="status", value_set=["PAID", "SENT"])]

    return known_status


def only(summary: RunSummary) -> CheckFinished:
    (check,) = summary.checks
    return check


def test_a_check_is_red_while_bad_rows_are_in_the_table(
    shop: Shop, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    read = rows_read(monkeypatch)
    shop.batches = [["PAID", "LOST"], ["PAID", "SENT", "PAID"], ["GONE"]]
    first, second = only(shop.materialize(known_status(shop))), only(shop.materialize(known_status(shop)))
    third = only(shop.materialize(known_status(shop)))
    seen = [(each.passed, *map(each.metadata.get, SHOWN)) for each in (first, second, third)]
    assert seen == [(False, 0, 2, 1, 1), (False, 1, 3, 1, 0), (False, 2, 1, 2, 1)]
    assert second.metadata["looked_at"] == "version 1, offsets 0: [2, 5)"
    assert second.error == f"{third.error}: rows of earlier runs"
    (verdict,) = second.metadata["expectations"]
    assert (verdict["checked"], verdict["unexpected"], verdict["in_batch"]) == (5, 1, 0)
    # No row is read twice, and those of earlier runs are shown on.
    assert read == [2, 3, 1]
    assert [row["where"] for row in third.metadata["failing_rows"]] == ["partition 0 offset 5", "partition 0 offset 1"]

    spark.sql(f"DELETE FROM {shop.orders.table} WHERE status IN ('LOST', 'GONE')")
    repaired = only(shop.materialize(known_status(shop)))
    assert (repaired.passed, repaired.metadata["failing_in_table"], read[3:]) == (True, 0, [4])


def test_rows_are_counted_once_more_where_the_suite_changed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    read = rows_read(monkeypatch)
    shop.batches = [["PAID", "LOST"], ["SENT"]]
    assert not only(shop.materialize(known_status(shop))).passed
    lenient = replace(known_status(shop), build=lambda gxe: [gxe.ExpectColumnValuesToNotBeNull(column="status")])
    check = only(shop.materialize(lenient))
    assert (check.passed, check.metadata["failing_in_table"], read) == (True, 0, [2, 3])


def test_what_is_of_the_whole_table_is_asked_of_it(shop: Shop) -> None:
    @expectations(shop.orders.table)
    def different(gxe: Any) -> list[Any]:
        return [
            gxe.ExpectColumnValuesToBeUnique(column="status"),
            gxe.ExpectColumnValuesToNotBeNull(column="status"),
            gxe.ExpectTableRowCountToBeBetween(min_value=3),
        ]

    shop.batches = [["PAID", "SENT"], ["PAID"]]
    first, second = only(shop.materialize(different)), only(shop.materialize(different))
    held = [[verdict["passed"] for verdict in each.metadata["expectations"]] for each in (first, second)]
    assert held == [[True, True, False], [False, True, True]]
    shop.batches.append(["PAID"])
    limited = only(shop.materialize(replace(different, rows_max=3)))
    assert [verdict["passed"] for verdict in limited.metadata["expectations"]] == [True, True, False]
    assert limited.metadata["note"] == (
        "the table has 4 rows, more than rows_max 3: only the rows of the last run were evaluated"
    )


def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each evaluation from now on."""
    read: list[int] = []

    def counted(*given: Any, **named: Any) -> Any:
        outcome = engine.evaluate(*given, **named)
        read.append(outcome.rows)
        return outcome

    monkeypatch.setattr(table_check, "evaluate", counted)
    return read


def test_failing_rows_are_shown_with_their_place_in_the_log(shop: Shop) -> None:
    shop.batches = [["PAID", "LOST", "GONE"]]
    failed = only(shop.materialize(known_status(shop)))
    (verdict,) = failed.metadata["expectations"]
    assert (verdict["checked"], verdict["unexpected"]) == (3, 2)
    shown = {(row["where"], row["values"]) for row in failed.metadata["failing_rows"]}
    assert shown == {("partition 0 offset 1", "{'status': 'LOST'}"), ("partition 0 offset 2", "{'status': 'GONE'}")}


def test_failing_rows_are_kept_whole_and_once(shop: Shop, spark: "SparkSession") -> None:
    shop.batches = [["PAID", "LOST", "GONE"]]
    failed = only(shop.materialize(known_status(shop)))
    again = only(shop.materialize(known_status(shop)))
    assert failed.metadata["kept_in"] == again.metadata["kept_in"] == kept_table(shop.orders.table)
    kept = spark.read.format("delta").load(Warehouse.at(shop.settings.warehouse).path(kept_table(shop.orders.table)))
    rows = sorted((row._check, row._version, row._offset, json.loads(row._row)["status"]) for row in kept.collect())
    assert rows == [("known_status", 0, 1, "LOST"), ("known_status", 0, 2, "GONE")]


def test_a_blocking_suite_that_fails_holds_back_what_reads_the_table(shop: Shop) -> None:
    shop.batches = [["LOST"]]
    with pytest.raises(MaterializationError, match="check known_status: column values to be in set") as raised:
        shop.materialize(known_status(shop, blocking=True))
    assert {asset.table: asset.status for asset in raised.value.summary.assets} == {
        shop.orders.table: Status.MATERIALIZED,
        "marts.busiest": Status.HELD_BACK,
    }


def test_a_batch_that_failed_is_not_forgotten_when_nothing_new_comes(shop: Shop) -> None:
    shop.batches = [["LOST"]]
    assert not only(shop.materialize(known_status(shop))).passed
    again = only(shop.materialize(known_status(shop)))
    assert (again.passed, again.metadata["rows"]) == (False, 1)


def test_rows_that_passed_are_not_read_again(shop: Shop) -> None:
    shop.batches = [["PAID"]]
    assert "note" not in only(shop.materialize(known_status(shop))).metadata
    again = only(shop.materialize(known_status(shop)))
    assert (again.passed, again.metadata["note"]) == (True, "passed before on the same rows")


def test_a_suite_of_the_whole_table_sees_earlier_runs(shop: Shop) -> None:
    shop.batches = [["LOST"], ["PAID"]]
    shop.materialize()
    check = only(shop.materialize(known_status(shop, scope=Scope.TABLE)))
    assert (check.passed, check.metadata["rows"]) == (False, 2)


def test_the_contract_gives_a_suite_of_its_own(shop: Shop, tmp_path: Path) -> None:
    contract = Contract(
        producer="shop",
        contact="shop@example.org",
        subject="orders-value",
        path=tmp_path / "orders.avsc",
        schema=SCHEMA,
        text="",
        compatibility="BACKWARD",
        topics=("orders",),
    )
    shop.batches = [["PAID", None, "LOST"]]
    check = only(shop.materialize(*contract_suites(shop.declarations, [contract])))
    unexpected = {row["expectation"].partition(" (")[0]: row["unexpected"] for row in check.metadata["expectations"]}
    assert unexpected == {"column values to not be null": 1, "column values to be in set": 1}


def test_a_session_of_this_process_is_used_and_left_running(shop: Shop, spark: "SparkSession") -> None:
    shop.batches = [["PAID"]]
    shop.materialize()
    assert spark.range(3).count() == 3
