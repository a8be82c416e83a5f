"""
Dagster's runs over real tables: one that goes on until it is terminated, and the check that a table is its log.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from damaged_tables import OFF, add_off

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.orchestration import Policy, SparkResource, assets_for, continuous_job, reconciliation_checks
from fluvial.spark.session import register_tables
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, aggregate, count, history, latest, pipeline, publish, state, sum_, tumbling
from fluvial.tables.refresh import key_plan
from fluvial.testing import EmbeddedPlatform, embedded_platform, events

pytestmark = [
    pytest.mark.spark,
    # Dagster asks itself for it when a resource has another.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

FLIGHTS = Path(__file__).parents[2] / "schemas" / "airline_operations" / "flight_events.avsc"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
FLIGHT_EVENTS = history("flight_events")
AIRCRAFT = state(
    "aircraft",
    topic="flight_events",
    key="tailnum",
    fields={"seen": count(), "miles": sum_("distance"), "last_at": latest("event_time")},
)


@pytest.fixture
def platform() -> Iterator[EmbeddedPlatform]:
    with embedded_platform() as running:
        running.register(FLIGHTS.parents[1])
        yield running


@pytest.fixture
def own_settings(platform: EmbeddedPlatform, base_settings: Settings, tmp_path: Path, spark: Any) -> Settings:
    """The platform, an empty warehouse, and the session of these tests."""
    there = platform.settings(tmp_path / "warehouse")
    settings = replace(there, spark_master=base_settings.spark_master, spark_conf=base_settings.spark_conf)
    register_tables(spark, settings)
    return settings


def send(platform: EmbeddedPlatform, number: int) -> None:
    for tail in ("N1", "N2"):
        platform.send("flight_events", events(FLIGHTS, number // 2, tailnum=tail), key="tailnum")


def definitions(settings: Settings, *declared: Declaration) -> dg.Definitions:
    tables: Mapping[str, Declaration] = {each.table: each for each in declared}
    return dg.Definitions(
        assets=assets_for(tables),
        asset_checks=reconciliation_checks(tables, blocking=True),
        jobs=[continuous_job(tables)],
        resources={"spark": SparkResource.of(settings)},
        executor=dg.in_process_executor,
    )


def verdicts(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {".".join(each.asset_key.path): each for each in result.get_asset_check_evaluations()}


def test_a_long_run_ends_after_the_batch_under_way_and_its_tables_are_exact(
    platform: EmbeddedPlatform, own_settings: Settings, spark: Any
) -> None:
    calls: list[int] = []
    instance = dg.DagsterInstance.ephemeral()

    @pipeline(name="by_tail", inputs=["history.flight_events"], version="1")
    def by_tail(flights: Any) -> Any:
        calls.append(len(calls) + 1)
        match len(calls):
            case 1:
                send(platform, 20)
            case 2:
                # As the page does.
                instance.report_run_canceling(instance.get_runs()[0])
                os.kill(os.getpid(), signal.SIGTERM)
                # Time for a run that would drop its batch to do so: what follows is read and committed after it.
                time.sleep(1)
        return flights.groupBy("tailnum").count()

    send(platform, 40)
    defined = definitions(own_settings, FLIGHT_EVENTS, AIRCRAFT, by_tail)
    with instance:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            defined.resolve_job_def("continuous").execute_in_process(instance=instance, run_config=QUIET)
        (run,) = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.CANCELED
        shown = {
            table: [
                record.asset_materialization.metadata
                for record in instance.fetch_materializations(dg.AssetKey(table.split(".")), limit=10).records
                if record.asset_materialization is not None
            ]
            for table in ("history.flight_events", "state.aircraft", "marts.by_tail")
        }
        job = defined.resolve_implicit_global_asset_job_def().get_subset(
            asset_selection=set(), asset_check_selection=set(defined.resolve_asset_graph().asset_check_keys)
        )
        found = verdicts(job.execute_in_process(instance=instance, run_config=QUIET))
    # Each batch was shown as it was committed, the newest first; the one under way was the last.
    assert calls == [1, 2]
    for table, batches in shown.items():
        assert [batch["delta_version"].value for batch in batches] == [1, 0], table
        assert {batch["run"] for batch in batches} == {dg.MetadataValue.dagster_run(run.run_id)}, table
    assert {row.tailnum: row["count"] for row in spark.table("marts.by_tail").collect()} == {"N1": 30, "N2": 30}
    assert {table: each.passed for table, each in found.items()} == {
        "history.flight_events": True,
        "state.aircraft": True,
    }
    compared = found["state.aircraft"].metadata["compared"]
    assert isinstance(compared, dg.TableMetadataValue)
    assert [row.data for row in compared.records] == [{"partition": 0, "start": 0, "end": 60, "records": 60}]


def test_a_table_that_is_not_what_the_log_says_holds_back_what_reads_it(
    platform: EmbeddedPlatform, own_settings: Settings, spark: Any
) -> None:
    @pipeline(name="by_tail", inputs=["history.flight_events"], version="1")
    def by_tail(flights: Any) -> Any:
        return flights.groupBy("tailnum").count()

    send(platform, 20)
    job = definitions(own_settings, FLIGHT_EVENTS, by_tail).resolve_implicit_global_asset_job_def()
    first = job.execute_in_process(run_config=QUIET)
    assert first.success
    (verdict,) = verdicts(first).values()
    assert (verdict.passed, verdict.metadata["rows"].value, verdict.metadata["differences"].value) == (True, 20, 0)

    path = Warehouse.at(own_settings.warehouse).path("history.flight_events")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE _offset = 3")
    send(platform, 2)
    second = job.execute_in_process(run_config=QUIET, raise_on_error=False)
    assert not second.success
    (verdict,) = verdicts(second).values()
    assert (verdict.passed, verdict.metadata["differences"].value) == (False, 1)
    assert verdict.description is not None
    assert "partition 0, offsets 0 to" in verdict.description
    assert "21 rows for 22 records" in verdict.description
    assert second.asset_materializations_for_node("marts__by_tail") == []


def test_an_asset_with_a_key_is_brought_up_to_date_by_the_keys_that_changed(
    platform: EmbeddedPlatform, own_settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tables of this size are cheaper by the full query.
    monkeypatch.setattr(key_plan, "why_full", lambda _work: None)

    @pipeline(name="by_tail", inputs=["history.flight_events"], key="tailnum", version="1")
    def by_tail(flights: Any) -> Any:
        return flights.groupBy("tailnum").count()

    job = definitions(own_settings, FLIGHT_EVENTS, by_tail).resolve_implicit_global_asset_job_def()
    roads = []
    for _ in range(2):
        send(platform, 20)
        result = job.execute_in_process(run_config=QUIET)
        assert result.success
        (shown,) = result.asset_materializations_for_node("marts__by_tail")
        made = newest_made(TableLog(spark, Warehouse.at(own_settings.warehouse).path("marts.by_tail")))
        assert made is not None
        assert made.stamp.refresh is not None
        assert shown.metadata["delta_version"].value == made.commit.version
        roads.append(made.stamp.refresh.road)
    assert roads == ["full", "keys"]
    assert {row.tailnum: row["count"] for row in spark.table("marts.by_tail").collect()} == {"N1": 20, "N2": 20}


class NoSpark(SparkResource):
    """A resource that must not be asked for its session."""

    @property
    def session(self) -> Any:
        raise dg.Failure("Spark was started", allow_retries=False)


def test_a_run_with_nothing_new_does_without_spark(platform: EmbeddedPlatform, own_settings: Settings) -> None:
    @pipeline(name="by_tail", inputs=["history.flight_events"], version="1")
    def by_tail(flights: Any) -> Any:
        return flights.groupBy("tailnum").count()

    planes = publish("state.aircraft", topic="aircraft-now", key="tailnum")
    declared = (FLIGHT_EVENTS, AIRCRAFT, by_tail, planes)
    send(platform, 4)
    with dg.DagsterInstance.ephemeral() as instance:

        def run(resource: type[SparkResource], *tables: Declaration) -> dg.ExecuteInProcessResult:
            defined = dg.Definitions(
                assets=assets_for({each.table: each for each in tables}),
                resources={"spark": resource.of(own_settings)},
                executor=dg.in_process_executor,
            )
            job = defined.resolve_implicit_global_asset_job_def()
            return job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)

        assert run(SparkResource, *declared).success
        again = run(NoSpark, *declared)
        assert again.success
        shown = {".".join(each.asset_key.path): each.metadata for each in materialized(again)}
        assert {
            table: (each["skipped"].value, each["lag"].value if "lag" in each else 0) for table, each in shown.items()
        } == {each.table: (True, 0) for each in declared}
        # The page goes on to show what the last run with Spark found.
        assert "dagster/column_lineage" in shown["marts.by_tail"]
        assert "dagster/column_schema" in shown["state.aircraft"]

        changed = replace(by_tail, version="2")
        assert not run(NoSpark, changed).success
        newer = json.loads(FLIGHTS.read_text())
        newer["fields"].append({"name": "gate", "type": "string", "default": "?"})
        with own_settings.registry.client() as schemas:
            schemas.register("flight_events-value", json.dumps(newer))
        assert not run(NoSpark, FLIGHT_EVENTS).success
        assert run(SparkResource, FLIGHT_EVENTS).success
        assert run(NoSpark, FLIGHT_EVENTS).success
        send(platform, 2)
        assert not run(NoSpark, FLIGHT_EVENTS).success


def materialized(result: dg.ExecuteInProcessResult) -> list[Any]:
    events_of_run = result.get_asset_materialization_events()
    return [each.step_materialization_data.materialization for each in events_of_run]


def test_a_partition_of_a_mart_is_the_windows_that_begin_in_it(
    spark: Any, own_settings: Settings, tmp_path: Path
) -> None:
    start = datetime(2025, 1, 1, tzinfo=UTC)
    times = [(start + timedelta(minutes=40 * number), number) for number in range(9)]
    rows = spark.createDataFrame(times, "at timestamp, n long")
    rows.write.format("delta").save(f"{own_settings.warehouse}/history/readings")
    hourly = aggregate("history.readings", name="hourly", fields={"n": sum_("n")}, window=tumbling("at", "1 hour"))
    policy = Policy(partitions=dg.HourlyPartitionsDefinition("2025-01-01-00:00"))
    assets = assets_for({hourly.table: hourly}, policies={hourly.table: policy})
    key = dg.AssetKey(["marts", "hourly"])

    def run(**how: Any) -> None:
        assert dg.materialize(
            assets,
            selection=[key],
            instance=instance,
            resources={"spark": SparkResource.of(own_settings)},
            run_config=QUIET,
            **how,
        ).success

    def off() -> set[int]:
        table = spark.read.format("delta").load(f"{own_settings.warehouse}/marts/hourly").where(f"n >= {OFF}")
        return {row[0] for row in table.selectExpr("hour(window_start)").collect()}

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run()
        assert instance.get_materialized_partitions(key) == {f"2025-01-01-0{hour}:00" for hour in range(6)}
        add_off(spark, own_settings, hourly.table, "n")
        run(partition_key="2025-01-01-02:00")
        assert off() == {0, 1, 3, 4, 5}
        # A backfill of hours that follow each other is one run.
        names = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
        run(tags=dict(zip(names, ("2025-01-01-03:00", "2025-01-01-05:00"), strict=True)))
        assert off() == {0, 1}
