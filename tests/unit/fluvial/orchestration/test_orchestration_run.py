"""Whole runs in this process: what the caller hears, what the page keeps, and what a killed run leaves behind."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from miniature import DECLARATIONS, NoSpark, Runner, result_of

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.orchestration import assets_for
from fluvial.orchestration.run.instance import home_of, is_dead, open_instance, shared_run_lock
from fluvial.orchestration.run.progress import (
    AssetFinished,
    AssetProgress,
    AssetStarted,
    CheckFinished,
    MaterializationError,
    RunEvent,
    RunSummary,
    Status,
)
from fluvial.orchestration.run.run import SelectionError, materialize_all
from fluvial.spark.avro import Contract
from fluvial.tables import Declaration
from fluvial.tables.plan.result import RunResult

Run = Callable[..., RunSummary]


@pytest.fixture
def run(settings: Settings, definitions: dg.Definitions) -> Run:
    def materialize(
        selection: Sequence[str] | None = None,
        on_event: Callable[[RunEvent], None] | None = None,
        checks: Sequence[dg.AssetChecksDefinition] = (),
    ) -> RunSummary:
        defs = dg.Definitions.merge(definitions, dg.Definitions(asset_checks=checks))
        return materialize_all(settings, selection, on_event, definitions=defs, spark=NoSpark())

    return materialize


def statuses(summary: RunSummary) -> dict[str, Status]:
    return {asset.table: asset.status for asset in summary.assets}


def test_every_table_is_materialised_after_what_it_reads(run: Run, runner: Runner) -> None:
    summary = run()
    assert summary.succeeded
    assert set(statuses(summary).values()) == {Status.MATERIALIZED}
    assert sorted(runner.asked) == ["history.orders", "marts.busiest", "state.customers"]
    assert runner.asked.index("history.orders") < runner.asked.index("marts.busiest")


def test_the_caller_hears_each_table_begin_and_end_with_its_numbers(run: Run) -> None:
    heard: list[RunEvent] = []
    run(["history.orders"], heard.append)
    started, reading, finished = heard
    assert started == AssetStarted(table="history.orders")
    assert reading == AssetProgress(table="history.orders", message="reading history.orders")
    assert isinstance(finished, AssetFinished)
    assert (finished.metadata["rows"], finished.metadata["delta_version"]) == (7, 0)


def test_a_table_with_nothing_new_is_unchanged(run: Run, runner: Runner) -> None:
    runner.outcomes["history.orders"] = result_of("history.orders", skipped=True, rows=0)
    assert statuses(run(["history.orders"])) == {"history.orders": Status.UNCHANGED}


def test_the_contract_that_was_checked_before_the_run_is_given_to_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Contract | None] = {}

    def materialize(
        declaration: Declaration, *_: Any, contract: Contract | None, progress: Callable[[str], None]
    ) -> RunResult:
        given[declaration.table] = contract
        return result_of(declaration.table)

    monkeypatch.setattr("fluvial.tables.drive.runner.materialize", materialize)
    contract = Contract.proposed("orders-value", '{"type": "record", "name": "Order", "fields": []}')
    contracts = {"history.orders": contract}
    defs = dg.Definitions(assets=assets_for(DECLARATIONS), executor=dg.in_process_executor)
    materialize_all(settings, definitions=defs, spark=NoSpark.of(settings, contracts))
    assert given == {"history.orders": contract, "state.customers": None, "marts.busiest": None}


def test_a_table_that_does_not_exist_is_refused_with_those_that_do(run: Run, runner: Runner) -> None:
    with pytest.raises(SelectionError, match=r"no table 'history\.order'.*history\.orders, marts\.busiest"):
        run(["history.order"])
    assert not runner.asked


def test_a_failed_table_holds_back_what_reads_it_and_nothing_else(run: Run, runner: Runner) -> None:
    runner.outcomes["history.orders"] = FluvialError("no topic orders: create it")
    with pytest.raises(MaterializationError, match=r"history\.orders: no topic orders: create it") as raised:
        run()
    assert statuses(raised.value.summary) == {
        "history.orders": Status.FAILED,
        "state.customers": Status.MATERIALIZED,
        "marts.busiest": Status.HELD_BACK,
    }


def test_an_unforeseen_error_is_told_in_one_line(run: Run, runner: Runner) -> None:
    runner.outcomes["history.orders"] = ValueError("first line\nsecond line")
    with pytest.raises(MaterializationError) as raised:
        run(["history.orders"])
    assert str(raised.value) == "history.orders: ValueError: first line"


def verdict(passed: bool, *, blocking: bool) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=dg.AssetKey(["history", "orders"]), name="verdict", blocking=blocking)
    def check() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=passed, description="3 orders without a customer", metadata={"rows": 9})

    return check


def test_a_check_is_told_with_its_numbers(run: Run) -> None:
    (check,) = run(checks=[verdict(True, blocking=True)]).checks
    assert check == CheckFinished(
        table="history.orders", name="verdict", passed=True, severity="ERROR", metadata={"rows": 9}
    )


def test_a_blocking_check_that_fails_holds_back_what_reads_the_table(run: Run) -> None:
    with pytest.raises(MaterializationError, match="check verdict: 3 orders without a customer") as raised:
        run(checks=[verdict(False, blocking=True)])
    assert statuses(raised.value.summary)["marts.busiest"] is Status.HELD_BACK


def test_another_check_that_fails_is_told_and_stops_nothing(run: Run) -> None:
    summary = run(checks=[verdict(False, blocking=False)])
    assert summary.succeeded
    assert [check.passed for check in summary.checks] == [False]
    assert statuses(summary)["marts.busiest"] is Status.MATERIALIZED


def test_the_page_keeps_the_runs_and_nothing_is_sent_home(run: Run, settings: Settings) -> None:
    ids = [run(["history.orders"]).run_id for _ in range(2)]
    home = home_of(settings.data_dir)
    with open_instance(home) as instance:
        assert {kept.run_id for kept in instance.get_runs()} == set(ids)
        assert not instance.telemetry_enabled
    log = (home / "logs" / "run.log").read_text()
    assert all(run_id in log for run_id in ids)


def test_the_configuration_that_a_user_edits_stays(settings: Settings) -> None:
    configuration = home_of(settings.data_dir) / "dagster.yaml"
    configuration.write_text("telemetry:\n  enabled: false\n")
    home_of(settings.data_dir)
    assert configuration.read_text() == "telemetry:\n  enabled: false\n"


HANGS = """
    import json, sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from miniature import DECLARATIONS, NoSpark
    import dagster as dg
    from fluvial.config import Settings
    from fluvial.orchestration import assets_for
    from fluvial.orchestration.run.run import materialize_all

    def hang(declaration, settings, spark, progress):
        print("in the middle", flush=True)
        time.sleep(600)

    materialize_all(
        Settings(data_dir=Path(sys.argv[1])),
        definitions=dg.Definitions(assets=assets_for(DECLARATIONS, run=hang), resources={"spark": NoSpark()}),
        spark=NoSpark(),
    )
"""


def runs_by_status(settings: Settings) -> dict[str, int]:
    counts: dict[str, int] = {}
    with open_instance(home_of(settings.data_dir)) as instance:
        for kept in instance.get_runs():
            counts[kept.status.value] = counts.get(kept.status.value, 0) + 1
    return counts


def test_after_a_run_was_killed_the_next_one_closes_it_and_goes_through(run: Run, settings: Settings) -> None:
    script = [sys.executable, "-c", textwrap.dedent(HANGS), str(settings.data_dir), str(Path(__file__).parent)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "in the middle\n"
            # A run that lives is nobody's to close.
            run(["history.orders"])
            assert runs_by_status(settings) == {"STARTED": 1, "SUCCESS": 1}
        finally:
            os.kill(victim.pid, signal.SIGKILL)
    run(["history.orders"])
    assert runs_by_status(settings) == {"FAILURE": 1, "SUCCESS": 2}
    assert not list((home_of(settings.data_dir) / "alive").iterdir())


def test_a_run_is_dead_once_the_lock_that_it_held_is_free(tmp_path: Path) -> None:
    assert not is_dead(tmp_path, "never-began")
    with shared_run_lock(tmp_path, "lives"):
        # Two resources of one run hold it as one.
        with shared_run_lock(tmp_path, "lives"):
            assert not is_dead(tmp_path, "lives")
        assert not is_dead(tmp_path, "lives")
    assert not is_dead(tmp_path, "lives"), "it ended in order"
    (tmp_path / "alive" / "killed.lock").touch()
    assert is_dead(tmp_path, "killed")
