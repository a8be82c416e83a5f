"""What starts and ends runs beside the sensor, and what a run is for: conditions, schedules, windows, long runs."""

import _thread
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import dagster as dg
import pytest
from miniature import DECLARATIONS, NoSpark, Runner, busiest, result_of

from fluvial.errors import FluvialError
from fluvial.orchestration import (
    Policy,
    at_times,
    continuous_job,
    declaration_of,
    schedule,
    when_inputs_change,
)
from fluvial.orchestration.assets.assets import assets_for, table_asset
from fluvial.orchestration.assets.continuous import batch_event, until_interrupted
from fluvial.orchestration.assets.pipes import Told
from fluvial.spark.offset_times import Window
from fluvial.tables import DeclarationError, aggregate, compacted, count, history, pipeline, session, state, tumbling

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
HOURS = Policy(partitions=dg.HourlyPartitionsDefinition("2025-01-01-00:00", end_date="2025-01-02-00:00"))


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")
def test_an_asset_runs_once_after_an_input_has_changed() -> None:
    policies = {busiest.table: Policy(automation=when_inputs_change())}
    definitions = dg.Definitions(assets=assets_for(DECLARATIONS, policies=policies), resources={"spark": NoSpark()})
    orders, asked = dg.AssetKey(["history", "orders"]), dg.AssetKey(["marts", "busiest"])
    with dg.DagsterInstance.ephemeral() as instance:
        tick = dg.evaluate_automation_conditions(definitions, instance)
        assert tick.total_requested == 0
        instance.report_runless_asset_event(dg.AssetMaterialization(orders))
        tick = dg.evaluate_automation_conditions(definitions, instance, cursor=tick.cursor)
        assert tick.get_num_requested(asked) == 1
        instance.report_runless_asset_event(dg.AssetMaterialization(asked))
        tick = dg.evaluate_automation_conditions(definitions, instance, cursor=tick.cursor)
        assert tick.total_requested == 0


def test_a_time_of_the_clock_needs_no_change() -> None:
    assert at_times("0 2 * * *").get_label() == "at_times('0 2 * * *')"
    nightly = schedule(["history.orders"], "0 2 * * *", name="nightly", timezone="Europe/Berlin")
    definitions = dg.Definitions(assets=assets_for(DECLARATIONS), schedules=[nightly], resources={"spark": NoSpark()})
    (made,) = definitions.get_repository_def().schedule_defs
    assert (made.cron_schedule, made.execution_timezone) == ("0 2 * * *", "Europe/Berlin")


class WindowRunner(Runner):
    """Keeps the windows that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[Window | None] = []

    def __call__(self, *words: Any, window: Window | None = None, **options: Any) -> Any:
        self.windows.append(window)
        return super().__call__(*words, **options)


def test_a_partition_is_a_stretch_of_time_and_a_run_without_one_is_for_all() -> None:
    runner = WindowRunner()
    asset = table_asset(history("orders"), contract=None, policy=HOURS, run=runner)
    resources = {"spark": NoSpark()}
    assert dg.materialize([asset], resources=resources, run_config=QUIET, partition_key="2025-01-01-05:00").success
    hour = 1_735_707_600_000
    assert runner.windows == [Window(start_ms=hour, end_ms=hour + 3_600_000)]
    job = dg.Definitions(assets=[asset], resources=resources).resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(run_config=QUIET).success
    assert runner.windows[1:] == [None]


def test_only_rows_that_are_each_of_one_time_can_be_run_by_time() -> None:
    fields = {"n": count()}
    hourly = aggregate("history.orders", name="hourly", by="customer", fields=fields, window=tumbling("at", "1 hour"))
    (asset,) = (each for each in assets_for([hourly], policy=HOURS) if isinstance(each, dg.AssetsDefinition))
    assert asset.partitions_def == HOURS.partitions
    visits = aggregate("history.orders", name="visits", by="customer", fields=fields, window=session("at", "1 hour"))
    with pytest.raises(DeclarationError, match=r"marts\.visits cannot be partitioned by time"):
        assets_for([visits], policy=HOURS)
    with pytest.raises(DeclarationError, match=r"state\.orders cannot be partitioned by time"):
        assets_for([state("orders", topic="orders", key="customer", fields={"n": count()})], policy=HOURS)
    with pytest.raises(DeclarationError, match=r"policies name history\.order, which is not declared"):
        assets_for(DECLARATIONS, policies={"history.order": HOURS})


def test_declarations_become_assets_each_by_its_policy() -> None:
    @pipeline(name="by_hour", inputs=["history.orders"])
    def by_hour(orders: Any) -> Any:
        """Orders by the hour."""
        return orders

    policies = {"marts.by_hour": Policy(pool="heavy", links={"wiki": "https://w"})}
    assets = assets_for([by_hour, compacted("orders"), history("orders")], policies=policies)
    hourly, newest, orders = (each for each in assets if isinstance(each, dg.AssetsDefinition))
    made = declaration_of(hourly)
    assert made is not None
    assert made.table == "marts.by_hour"
    assert hourly.op.pool == "heavy"
    (spec,) = hourly.specs
    assert spec.description == "Orders by the hour."
    assert spec.metadata["wiki"] == dg.MetadataValue.url("https://w")
    assert newest.op.pool == "compacted.orders"
    assert declaration_of(orders) == history("orders")
    with pytest.raises(ImportError, match=r"declare it with fluvial\.tables\.state"):
        from fluvial.orchestration import state as _  # noqa: F401


def test_an_interruption_lets_the_work_come_to_its_end() -> None:
    ended: list[bool] = []

    def work(stop: threading.Event) -> Mapping[str, FluvialError]:
        _thread.interrupt_main()
        assert stop.wait(60)
        # Time for whoever does not wait for the work to be found out.
        time.sleep(0.5)
        ended.append(True)
        return {}

    with pytest.raises(KeyboardInterrupt):
        until_interrupted(work)
    assert ended == [True]


def test_work_that_fails_or_gives_up_tables_is_heard() -> None:
    def fails(_stop: threading.Event) -> Mapping[str, FluvialError]:
        raise ValueError("the JVM is gone")

    with pytest.raises(ValueError, match="the JVM is gone"):
        until_interrupted(fails)
    given_up = {"state.orders": FluvialError("its contract broke")}
    assert until_interrupted(lambda _stop: given_up) == given_up


def test_a_long_run_shows_each_batch_as_a_materialisation() -> None:
    event = batch_event(result_of("history.orders", version_after=4, offsets={0: (3, 9)}), "1234")
    assert event.asset_key == dg.AssetKey(["history", "orders"])
    assert event.tags == {"dagster/data_version": "delta-4"}
    assert event.metadata["run"] == dg.MetadataValue.dagster_run("1234")
    job = continuous_job(DECLARATIONS)
    dg.Definitions(jobs=[job], assets=assets_for(DECLARATIONS), resources={"spark": NoSpark()}).get_repository_def()


def test_what_a_driver_elsewhere_tells_comes_back_as_it_was() -> None:
    result = result_of("marts.busiest", version_before=1, version_after=2, offsets={1: (4, 9)}, inputs={"history.o": 3})
    column = {"name": "n", "type": "int", "comment": None, "nullable": True}
    told = Told(result=result, columns=(column,), lineage={"n": [("history.o", "amount")]})
    assert Told.of(json.loads(json.dumps(told.as_message()))) == told
