"""
Tables kept up to date while events arrive, until told to stop.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from following import Follower
from log_topic import Schemas, Sent
from plain_fold import FIELDS, SCHEMA, plain_compacted, plain_state, random_events

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.registry.client import RegisteredSchema
from fluvial.registry.errors import RegistryError
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import compacted, history, pipeline, state
from fluvial.tables.drive.continuous import POOL, Watcher, follow
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh import key_plan

pytestmark = pytest.mark.spark


def test_tables_follow_their_topic_in_batches_until_told_to_stop(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)

    @pipeline(name="kinds", inputs=["history.readings"], version="1")
    def kinds(readings: Any) -> Any:
        return readings.groupBy("kind").count()

    events = random_events(7, 130, partitions=2)
    topic.send(events[:90])
    declarations = [
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields=FIELDS),
        kinds,
    ]
    follower = Follower(declarations, settings, spark, schemas)

    def read_by(table: str) -> int:
        return sum(result.records_max for result in follower.results if result.table == table)

    tables = [each.table for each in declarations[:3]]
    try:
        follower.until(lambda: all(read_by(table) == 90 for table in tables))
        topic.send(events[90:])
        follower.until(lambda: all(read_by(table) == 130 for table in tables))
        follower.until(lambda: spark.table("marts.kinds").agg({"count": "sum"}).first()[0] == 130)
    finally:
        follower.end()
    assert follower.errors == {}
    assert max(result.records_max for result in follower.results) <= 62
    assert spark.table("history.readings").count() == 130
    found = {row.id: (row._partition, row._offset) for row in spark.table("compacted.readings").collect()}
    assert found == {key: (row["_partition"], row["_offset"]) for key, row in plain_compacted(topic).items()}
    rows = {row.id: {name: row[name] for name in FIELDS} for row in spark.table("state.readings").collect()}
    assert rows == plain_state(topic)


def test_a_mart_with_a_key_follows_by_the_keys_that_changed(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tables of this size are cheaper by the full query.
    monkeypatch.setattr(key_plan, "why_full", lambda _work: None)
    topic = make_topic(SCHEMA)

    def send(*keys: str) -> None:
        topic.send([Sent(key=key, value={"kind": key, "amount": 1, "weight": None, "at": 0}) for key in keys])

    @pipeline(name="kinds", inputs=["history.readings"], key="kind", version="1")
    def kinds(readings: Any) -> Any:
        return readings.groupBy("kind").count()

    def counts() -> dict[str, int]:
        return {row.kind: row["count"] for row in spark.table("marts.kinds").collect()}

    send("up", "up", "down")
    follower = Follower([history(topic.name, name="readings"), kinds], settings, spark, schemas)
    try:
        follower.until(lambda: any(result.table == "marts.kinds" for result in follower.results))
        send("up", "flat")
        follower.until(lambda: counts() == {"up": 3, "down": 1, "flat": 1})
    finally:
        follower.end()
    assert follower.errors == {}
    made = newest_made(TableLog(spark, Warehouse.at(settings.warehouse).path("marts.kinds")))
    assert made is not None
    assert made.stamp.refresh is not None
    assert (made.stamp.refresh.road, made.stamp.refresh.keys) == ("keys", 2)


def test_a_registry_that_does_not_answer_is_waited_for_and_one_that_refuses_is_not(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic, stop = make_topic(SCHEMA), threading.Event()
    topic.send([Sent(key="a", value={"kind": "up", "amount": 1, "weight": None, "at": 0})])

    class Away(Schemas):
        """A registry with these answers before its own."""

        errors: ClassVar[list[RegistryError]] = []

        def versions_of_subject(self, subject: str) -> list[RegisteredSchema]:
            if self.errors:
                raise self.errors.pop(0)
            return super().versions_of_subject(subject)

    waited: list[str] = []
    watcher = Watcher(batch=lambda _: stop.set(), waiting=waited.append, stopped=lambda *_: stop.set())
    away = Away(schemas.url)
    away.errors.extend([RegistryError("no answer"), RegistryError("forwarding failed", code=50003, status=500)])
    table = history(topic.name, name="readings")
    assert not follow([table], settings, spark, stop, schemas=away, watcher=watcher)
    assert waited == ["no answer", "forwarding failed"]

    stop.clear()
    away.errors.append(RegistryError("not authorized", code=40101, status=401))
    refused = follow([history(topic.name, name="others")], settings, spark, stop, schemas=away, watcher=watcher)
    assert list(map(str, refused.values())) == ["not authorized"]
    assert len(waited) == 2


def test_batches_take_turns_with_what_others_ask_of_the_session(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic, stop = make_topic(SCHEMA), threading.Event()
    topic.send([Sent(key="a", value={"kind": "up", "amount": 1, "weight": None, "at": 0})])
    pools = []

    def note(_result: RunResult) -> None:
        pools.append(spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
        stop.set()

    table = history(topic.name, name="readings")
    assert not follow([table], settings, spark, stop, schemas=schemas, watcher=Watcher(batch=note))
    assert pools == [POOL]
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None
    known = spark.sparkContext._jsc.sc().getAllPools()
    names = {known.apply(at).name() for at in range(known.size())}
    assert names == {"default", POOL}


def changed(schema: Mapping[str, Any], field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with this field in the place of that of its name, or behind the others."""
    others = [each for each in schema["fields"] if each["name"] != field["name"]]
    return {**schema, "fields": [*others, field]}


def test_a_compatible_version_is_taken_while_running_and_an_incompatible_one_stops(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    good, bad = make_topic(SCHEMA), make_topic(SCHEMA)
    event = Sent(key="a", value={"kind": "up", "amount": 1, "weight": None, "at": 0})
    for topic in (good, bad):
        topic.send([event])
    declarations = [history(bad.name, name="bad"), history(good.name, name="good")]
    follower = Follower(declarations, settings, spark, schemas)
    try:
        follower.until(lambda: len(follower.results) == 2)
        longer = schemas.register(good.subject, changed(SCHEMA, {"name": "note", "type": "string", "default": ""}))
        other = changed(SCHEMA, {"name": "kind", "type": "int"})
        with pytest.raises(RegistryError, match="TYPE_MISMATCH"):
            schemas.register(bad.subject, other)
        schemas.set_config("NONE", bad.subject)
        wrong = schemas.register(bad.subject, other)
        bad.send([replace(event, value={**event.value, "kind": 1}, schema_id=wrong)])
        good.send([replace(event, value={**event.value, "note": "new"}, schema_id=longer)])
        follower.until(lambda: len(follower.results) == 3 and "history.bad" in follower.stopped)
    finally:
        follower.end()
    assert list(follower.errors) == ["history.bad"]
    assert "kind" in follower.stopped["history.bad"]
    assert {row.note for row in spark.table("history.good").collect()} == {"", "new"}


def test_a_silent_cluster_is_waited_for(spark: Any, settings: Settings, schemas: Schemas, make_topic: Any) -> None:
    declarations = [history(make_topic(SCHEMA).name, name="readings")]
    silent = Follower(declarations, replace(settings, bootstrap_servers="127.0.0.1:1"), spark, schemas)
    try:
        silent.until(lambda: bool(silent.waited))
    finally:
        silent.end()
    assert silent.errors == {}
    assert "no broker answers" in silent.waited[0]
