"""
One key erased: followed through the log, every table, what is made of them, old versions and the files on the disk.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from erased_tables import (
    KEY,
    SCHEMA,
    bounds_of,
    check_exact,
    events,
    holding,
    last_records,
    on_disk,
    run,
    tables_of,
)
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.delta.commit import commit_once
from fluvial.delta.erasures import add_erasure, digest_of, read_erasures
from fluvial.delta.log import TableLog
from fluvial.delta.saved_keys import NAME
from fluvial.quality import Scope, Suite, check_table, keep_failing_rows
from fluvial.serve.warehouse import ServedWarehouse
from fluvial.spark.kafka import TopicBounds, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import (
    Declaration,
    History,
    history,
    pipeline,
)
from fluvial.tables.drive import runner
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.erasure.erase import ErasureReport, erase
from fluvial.tables.erasure.key_in_log import shown_time
from fluvial.tables.erasure.survey import EraseError, topic_of
from fluvial.tables.plan import table_index
from fluvial.tables.plan.table_index import TableIndexes
from fluvial.tables.replay.history import rewrite

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=2, config={"cleanup.policy": "compact"})
    return made


def filled(topic: Topic, settings: Settings, spark: Any, schemas: Schemas) -> dict[str, Declaration]:
    """The tables after two batches, a record that does not decode and rows that a check has put aside."""
    tables = tables_of(topic.name)
    topic.send([*events(), Sent(key=KEY, raw=b"bad", partition=1)])
    run(tables, settings, spark, schemas)
    topic.send(events(spent=5))
    run(tables, settings, spark, schemas)
    suite = Suite(
        table="history.customers",
        name="small",
        build=lambda gxe: [gxe.ExpectColumnValuesToBeBetween(column="spent", max_value=1)],
        blocking=False,
        scope=Scope.BATCH,
        description=None,
    )
    warehouse = Warehouse.at(settings.warehouse)
    check = check_table(spark, TableLog(spark, warehouse.path(suite.table)), suite)
    assert check.fresh is not None
    assert (
        keep_failing_rows(spark, warehouse, suite, check.fresh, check.outcome) == "quarantine.failed_history_customers"
    )
    return tables


ALL = [
    "compacted.customers",
    "history.customers",
    "marts.big",
    "marts.of_marts",
    "marts.spent",
    "marts.towns",
    "quarantine.failed_history_customers",
    "state.customers",
    "state.versions",
]


def erased(
    topic: Topic, tables: Mapping[str, Declaration], settings: Settings, spark: Any, schemas: Schemas, **how: Any
) -> ErasureReport:
    return erase(topic.name, KEY.encode(), tables, settings, spark, schemas=schemas, **how)


@pytest.mark.rota
def test_a_key_leaves_every_table_and_with_a_vacuum_every_file(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = filled(topic, settings, spark, schemas)
    aside = f"quarantine.{topic.name}"
    assert holding(spark, settings) == sorted([*ALL, aside])
    served = ServedWarehouse(settings.warehouse)
    assert served.table("state.customers").newest().get([KEY]) is not None
    before = {name: TableLog(None, Warehouse.at(settings.warehouse).path(name)).newest_version() for name in ALL}
    monkeypatch.setattr(table_index, "SAVED_MIN", 1)
    path = Warehouse.at(settings.warehouse).path("state.customers")
    assert TableIndexes().of(path, "id", placed=False).load(spark, before["state.customers"] or 0)
    assert Path(path, NAME).exists()

    planned = erased(topic, tables, settings, spark, schemas, dry_run=True)
    assert {each.table: each.rows for each in planned.gone if each.rows is not None} == {
        "history.customers": 4,
        "compacted.customers": 1,
        "state.customers": 1,
        "state.versions": 4,
        aside: 1,
        "quarantine.failed_history_customers": 3,
    }
    assert {each.table for each in planned.gone if each.rows is None} == {
        "marts.big", "marts.of_marts", "marts.spent", "marts.towns",
    }  # fmt: skip
    after = {name: TableLog(None, Warehouse.at(settings.warehouse).path(name)).newest_version() for name in ALL}
    assert (after, planned.tombstones, planned.number) == (before, {}, None)

    done = erased(topic, tables, settings, spark, schemas)
    assert (done.records, done.tombstones, done.number) == (5, {1: 7}, 1)
    assert holding(spark, settings) == []
    assert served.table("state.customers").newest().get([KEY]) is None
    assert not Path(path, NAME).exists()
    check_exact(tables, settings, spark, schemas)
    # Old versions are there still, and the report says so.
    old = spark.read.format("delta").option("versionAsOf", "0").load(f"{settings.warehouse}/state/customers")
    assert old.where(f"id = '{KEY}'").count() == 1
    assert {each.where.partition(":")[0] for each in done.remains} == {
        f"topic {topic.name} (5 records)", *ALL, aside,
    }  # fmt: skip

    # The batch that met the bad record was stopped, and left a file that no commit names: an hour later it may go too.
    for file in Path(settings.warehouse).rglob("*.parquet"):
        os.utime(file, (time.time() - 7_200, time.time() - 7_200))
    again = erased(topic, tables, settings, spark, schemas, with_vacuum=True)
    assert (again.tombstones, again.number, sum(each.rows or 0 for each in again.gone)) == ({}, 1, 0)
    assert on_disk(Path(settings.warehouse)) == []
    assert [each.where for each in again.remains] == [f"topic {topic.name} (6 records)"]
    # Tables and marts go on as ever.
    topic.send([Sent(key="bob", value={"town": "Ely", "spent": 100})])
    run(tables, settings, spark, schemas)
    assert spark.table("marts.towns").where("town = 'Ely'").first().spent == 112
    assert holding(spark, settings) == []


class StoppedError(Exception):
    """Stands for the end of a process."""


def stopping_at(steps: list[str]) -> Any:
    """Hear of the steps of an erasure, and end it when one that begins like the first of these begins."""

    def say(line: str) -> None:
        if steps and steps[0] in line:
            raise StoppedError(steps.pop(0))

    return say


@pytest.mark.rota
def test_an_erasure_that_is_stopped_at_a_step_is_gone_on_with(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    names = {"history.customers", "state.customers", "marts.big", "marts.towns"}
    tables = {name: each for name, each in tables_of(topic.name).items() if name in names}
    for spent in (1, 5):
        topic.send(events(spent=spent))
        run(tables, settings, spark, schemas)
    stops = steps_of(topic, tables, settings, spark, schemas)
    left = list(stops)
    for _ in stops:
        with pytest.raises(StoppedError):
            erased(topic, tables, settings, spark, schemas, with_vacuum=True, say=stopping_at(left))
        # Whatever was done by then is whole: every table can be read.
        for each in tables.values():
            spark.read.format("delta").load(Warehouse.at(settings.warehouse).path(each.table)).count()
    assert left == []
    done = erased(topic, tables, settings, spark, schemas, with_vacuum=True)
    # However often it was begun: a tombstone, and an entry of the list, beside the key by which the steps were found.
    assert done.number == 2
    assert [value for _, value in last_records(topic, spark, settings)].count(None) == 1
    assert on_disk(Path(settings.warehouse)) == []
    check_exact(tables, settings, spark, schemas)


def steps_of(
    topic: Topic, tables: Mapping[str, Declaration], settings: Settings, spark: Any, schemas: Schemas
) -> list[str]:
    """What an erasure says that changes nothing any more, as the key has no records; but for the steps in the log."""
    steps: list[str] = []
    erase(topic.name, b"nobody", tables, settings, spark, schemas=schemas, with_vacuum=True, say=steps.append)
    own = [step.partition(" 0 rows")[0] for step in steps if not step.startswith(topic.name)]
    return ["appending a tombstone", "listing the key", *own]


@pytest.mark.rota
def test_what_the_log_still_holds_comes_into_no_table_again(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    customers, versions = (tables_of(topic.name)[name] for name in ("history.customers", "state.versions"))
    tables = {each.table: each for each in (customers, versions)}
    topic.send(events())
    run(tables, settings, spark, schemas)
    erased(topic, tables, settings, spark, schemas)
    for each in tables.values():
        rebuild(each, settings, spark, schemas=schemas)
    assert isinstance(customers, History)
    rewrite(customers, settings, spark, {0: (0, 1), 1: (0, 3)}, schemas=schemas)
    tables |= {"history.again": history(topic.name, name="again")}
    run(tables, settings, spark, schemas)
    assert holding(spark, settings) == []
    # A customer who comes back begins anew, and may be erased once more.
    topic.send([Sent(key=KEY, value={"town": "Leeds", "spent": 7}, partition=1)])
    run(tables, settings, spark, schemas)
    check_exact(tables, settings, spark, schemas)
    assert [row.events for row in spark.table("state.versions").where(f"id = '{KEY}'").collect()] == [1]
    assert spark.table("history.again").where("town = 'Leeds'").count() == 1
    done = erased(topic, tables, settings, spark, schemas)
    assert (done.number, done.tombstones) == (2, {1: 5})
    assert holding(spark, settings) == []


@pytest.mark.rota
def test_a_topic_that_is_not_compacted_says_until_when_it_keeps_the_key(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    day_ms = 86_400_000
    topic = make_topic(SCHEMA, partitions=2, config={"cleanup.policy": "delete", "retention.ms": str(day_ms)})
    at = (time.time_ns() // 1_000_000) - 1_000
    topic.send([replace(each, timestamp_ms=at) for each in events()])
    tables = {name: tables_of(topic.name)[name] for name in ("history.customers", "state.versions")}
    run(tables, settings, spark, schemas)
    # Of a state no row tells which records it was made of: what came by the time it is erased goes with the rest.
    entry = add_erasure(
        spark,
        Warehouse.at(settings.warehouse).root,
        topic=topic.name,
        topic_id=bounds(topic, settings).topic_id,
        digest=digest_of(KEY.encode()),
        before={0: 1, 1: 1},
        ended=(),
    )
    run(tables, settings, spark, schemas)
    assert read_erasures(spark, settings.warehouse, topic.name, None).of(entry.digest).before == {0: 1, 1: 3}
    run(tables, settings, spark, schemas)
    assert holding(spark, settings) == []
    check_exact(tables, settings, spark, schemas)
    done = erased(topic, tables, settings, spark, schemas)
    assert (done.records, done.tombstones, done.number) == (2, {}, 2)
    assert done.remains[0].where == f"topic {topic.name} (2 records)"
    assert done.remains[0].until.startswith(f"retention removes them, from {shown_time(at + day_ms)} on")


def bounds(topic: Topic, settings: Settings) -> TopicBounds:
    return topic_bounds(settings.cluster, topic.name)


@pytest.mark.rota
def test_a_batch_that_was_planned_before_the_erasure_does_not_bring_the_key_back(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    tables = tables_of(topic.name)
    names = ["history.customers", "state.customers"]
    tables = {name: tables[name] for name in names}
    topic.send(events())
    run(tables, settings, spark, schemas)
    for name in names:
        topic.send(events(spent=3))
        with patch.object(runner, "commit_once", side_effect=erasing_first(topic, tables, settings, spark, schemas)):
            materialize(tables[name], settings, spark, schemas=schemas)
        run(tables, settings, spark, schemas)
        assert holding(spark, settings) == []
    check_exact(tables, settings, spark, schemas)


def erasing_first(
    topic: Topic, tables: Mapping[str, Declaration], settings: Settings, spark: Any, schemas: Schemas
) -> Any:
    """The commit of a batch, before the first of which the key is erased by somebody else."""
    calls: list[int] = []

    def commit(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            erased(topic, tables, settings, spark, schemas)
        return commit_once(*arguments, **named)

    return commit


def test_what_would_keep_the_key_is_told_before_anything_is_changed(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    with pytest.raises(EraseError, match=r"marts\.big is made from state\.customers"):
        topic_of("marts.big", tables_of(topic.name))
    assert topic_of("state.customers", tables_of(topic.name)) == topic.name
    topic.send(events())
    customers = tables_of(topic.name)["state.customers"]
    pinned = pipeline(name="as_it_was", inputs=["state.customers"], pinned={"state.customers": 0}, version="1")(
        lambda rows: rows.select("id")
    )
    tables = {"state.customers": customers, pinned.table: pinned}
    run(tables, settings, spark, schemas)
    ends = bounds_of(topic, settings)
    with pytest.raises(EraseError, match=r"marts\.as_it_was reads state\.customers at version 0, to which"):
        erased(topic, tables, settings, spark, schemas)
    assert bounds_of(topic, settings) == ends
    assert not read_erasures(spark, settings.warehouse, topic.name, None)
