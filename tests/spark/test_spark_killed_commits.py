"""A driver is killed at each step of a commit: what it had committed is there once, and nothing else is."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import killed_driver
import pytest
from killed_driver import APPEND_STEPS, MART_INPUT, MART_STEPS, STEPS, end_of, table_of
from log_topic import Schemas
from plain_fold import SCHEMA, random_events

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.delta.stamp import read_position
from fluvial.tables import Pipeline
from fluvial.tables.drive.runner import materialize
from fluvial.tables.refresh import key_plan

pytestmark = pytest.mark.spark

ATTEMPTS_MAX = 3
IN_TURN = pytest.mark.rota  # a Spark for each step


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        pytest.param("state", ["commit begun"], id="state, one step"),
        pytest.param("history", APPEND_STEPS, id="history", marks=IN_TURN),
        pytest.param("compacted", STEPS, id="compacted", marks=IN_TURN),
        pytest.param("state", STEPS, id="state", marks=IN_TURN),
    ],
)
def test_a_driver_killed_at_a_step_leaves_whole_batches_once(
    kind: str, steps: Sequence[str], spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table = table_of(kind, topic.name)
    log = TableLog(spark, f"{settings.warehouse}/{table.table.replace('.', '/')}")
    topic.send(random_events(1, 40, partitions=2))
    materialize(table, settings, spark, schemas=schemas)
    for number, step in enumerate(steps):
        topic.send(random_events(number + 2, 40, partitions=2))
        before = read_position(log, table.table)
        assert before.version is not None
        is_committed = step in {"committed", "shown"}
        for _ in range(ATTEMPTS_MAX):
            assert killed(step, kind, topic.name, settings) == -signal.SIGKILL
            after = read_position(log, table.table)
            # Whoever watches the folder may see a file only when its commit is there as well.
            if step != "files written" or after.version == before.version:
                break
            topic.send(random_events(number + 20, 10, partitions=2))
            before = after
        assert after.version == before.version + is_committed, step
        if not is_committed:
            assert after.ends == before.ends
        result = materialize(table, settings, spark, schemas=schemas)
        assert result.skipped == is_committed, step
    quiet = replace(settings, warehouse=f"{settings.warehouse}-quiet")
    materialize(table, quiet, spark, schemas=schemas)
    found = spark.read.format("delta").load(log.path)
    expected = spark.read.format("delta").load(f"{quiet.warehouse}/{table.table.replace('.', '/')}")
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.select(found.columns).collect()))


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        pytest.param("mart", MART_STEPS, id="all steps", marks=IN_TURN),
        pytest.param("aggregate", MART_STEPS, id="aggregate, all steps", marks=IN_TURN),
        pytest.param("rows", MART_STEPS, id="rows, all steps", marks=IN_TURN),
    ],
)
def test_a_driver_killed_while_it_refreshes_a_mart_leaves_whole_versions(
    kind: str, steps: Sequence[str], spark: Any, warehouse_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_plan, "why_full", lambda _work: None)
    mart = table_of(kind, "no topic")
    assert isinstance(mart, Pipeline)
    log = TableLog(spark, f"{warehouse_settings.warehouse}/marts/killed")
    history = f"{warehouse_settings.warehouse}/{MART_INPUT.replace('.', '/')}"

    def add() -> None:
        rows = spark.range(60).selectExpr("CAST(id % 40 AS STRING) AS customer", "id AS amount")
        rows.sample(0.5).write.format("delta").mode("append").save(history)

    add()
    materialize(mart, warehouse_settings, spark)
    for step in steps:
        add()
        before = log.newest_version()
        assert before is not None
        assert killed(step, kind, "no topic", warehouse_settings) == -signal.SIGKILL
        if step != "files written":  # the watcher may see the file when the commit is there as well
            assert log.newest_version() == before + (step == "committed"), step
        materialize(mart, warehouse_settings, spark)
        assert materialize(mart, warehouse_settings, spark).skipped
        found, rows = (spark.read.format("delta").load(path) for path in (log.path, history))
        assert sorted(map(str, found.collect())) == sorted(map(str, mart(rows).select(found.columns).collect())), step
        refresh = newest_made(log)
        assert refresh is not None
        assert refresh.stamp.refresh is not None
        assert refresh.stamp.refresh.road == {"mart": "keys", "aggregate": "parts", "rows": "rows"}[kind]


def killed(step: str, kind: str, topic: str, settings: Settings) -> int:
    """Run a driver of its own, which kills itself at a step; return the status that it ended with."""
    return end_of(killed_driver.__file__, {"step": step, "kind": kind, "topic": topic}, settings)
