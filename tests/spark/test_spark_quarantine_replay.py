"""
Records of a quarantine table, repaired and put back: each once, through every table behind the topic.
"""

from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic
from plain_fold import SCHEMA

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.quarantine import repair
from fluvial.quarantine.repair import RepairError, Repairing
from fluvial.quarantine.replay import Replayed
from fluvial.quarantine.table import TableReplay
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import compacted, count, history, pipeline, state, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.rota]

GOOD = {"kind": "up", "amount": 1, "weight": None, "at": 0}
REPAIRED = {"kind": "up", "amount": 40, "weight": None, "at": 0}


class StoppedError(Exception):
    """Stands for the end of a process."""


@pytest.fixture
def topic(make_topic: Any, schemas: Schemas) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=2)
    made.send(
        [
            Sent(key="a", value=GOOD),
            Sent(key="a", raw=b"no Avro", timestamp_ms=1_700_000_000_000),
            Sent(key="b", raw=b"\0\0", partition=1),
            Sent(key="b", value=GOOD, partition=1),
        ]
    )
    return made


def tables_of(topic: Topic) -> list[Any]:
    @pipeline(name="amounts", inputs={"history.readings": "CAST(_key AS STRING)"}, key="id", version="1")
    def amounts(rows: Any) -> Any:
        return rows.selectExpr("CAST(_key AS STRING) AS id", "amount").groupBy("id").sum("amount").toDF("id", "amount")

    return [
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields={"events": count(), "amount": sum_("amount")}),
        amounts,
    ]


def run(tables: list[Any], settings: Settings, spark: Any, schemas: Schemas) -> None:
    for each in tables:
        materialize(each, settings, spark, schemas=schemas)


def replaying(topic: Topic, settings: Settings, spark: Any, schemas: Schemas, **how: Any) -> TableReplay:
    how.setdefault("repairing", Repairing(schemas, repair.settings({"kind": "up", "amount": "40", "at": "0"})))
    return TableReplay(table=f"quarantine.{topic.name}", settings=settings, spark=spark, **how)


def amounts_of(spark: Any, settings: Settings) -> dict[str, dict[str, int]]:
    """The amount of each key in every table."""
    path = Warehouse.at(settings.warehouse).path
    read = spark.read.format("delta").load
    history_rows = read(path("history.readings")).groupBy("_key").sum("amount").toDF("_key", "amount")
    return {
        "history": {row._key.decode(): row.amount for row in history_rows.collect()},
        "compacted": {row.id: row.amount for row in read(path("compacted.readings")).collect()},
        "state": {row.id: row.amount for row in read(path("state.readings")).collect()},
        "mart": {row.id: row.amount for row in read(path("marts.amounts")).collect()},
    }


def test_one_record_flows_through_every_table_once_however_often_it_is_replayed(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    tables = tables_of(topic)
    run(tables, settings, spark, schemas)
    assert amounts_of(spark, settings) == {
        table: {"a": 1, "b": 1} for table in ("history", "compacted", "state", "mart")
    }
    one = replaying(topic, settings, spark, schemas, only={(0, 1)})
    assert one.run(dry_run=True) == Replayed(appended=1)
    assert [one.run(), one.run(), one.run()] == [Replayed(appended=1), Replayed(), Replayed()]
    for _ in range(2):
        run(tables, settings, spark, schemas)
        assert amounts_of(spark, settings) == {
            "history": {"a": 41, "b": 1},
            "compacted": {"a": 40, "b": 1},
            "state": {"a": 41, "b": 1},
            "mart": {"a": 41, "b": 1},
        }
    came = spark.table("history.readings").where("amount = 40").selectExpr("*", "unix_millis(_timestamp) AS ms").first()
    assert (came._partition, came._offset, came.ms) == (0, 2, 1_700_000_000_000)
    marked = spark.table(f"quarantine.{topic.name}").where("_replayed IS NOT NULL").collect()
    assert [(row._partition, row._offset) for row in marked] == [(0, 1)]
    # What is put aside from now on stands beside it, and waits.
    topic.send([Sent(key="c", raw=b"bad")])
    run(tables, settings, spark, schemas)
    rest = replaying(topic, settings, spark, schemas)
    assert [rest.run(), rest.run()] == [Replayed(appended=2), Replayed()]
    run(tables, settings, spark, schemas)
    assert amounts_of(spark, settings)["state"] == {"a": 41, "b": 41, "c": 40}
    for each in tables:
        assert verify(each, settings, spark, schemas=schemas).is_exact


def test_a_replay_that_is_stopped_appends_nothing_twice(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    tables = tables_of(topic)
    run(tables, settings, spark, schemas)
    for stop_at in ("append", "mark"):

        def step(name: str, stop_at: str = stop_at) -> None:
            if name == stop_at:
                raise StoppedError(name)

        with pytest.raises(StoppedError):
            replaying(topic, settings, spark, schemas, step=step).run()
    # The second was stopped behind its transaction.
    assert replaying(topic, settings, spark, schemas).run() == Replayed()
    run(tables, settings, spark, schemas)
    assert amounts_of(spark, settings)["mart"] == {"a": 41, "b": 41}


def test_what_cannot_be_replayed_is_said_and_waits(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic({**SCHEMA, "fluvial.key": "kind"})
    topic.send([Sent(key="a", value=GOOD), Sent(key="a", raw=b"bad"), Sent(key=None, value=GOOD)])
    table = compacted(topic.name, name="readings", keyless="quarantine")
    with pytest.raises(TableError, match="there is no table"):
        replaying(topic, settings, spark, schemas).run()
    materialize(table, settings, spark, schemas=schemas)
    plain = Repairing(schemas, None)
    with pytest.raises(TableError, match="no record of partition 0, offset 7"):
        replaying(topic, settings, spark, schemas, only={(0, 7)}).run()
    with pytest.raises(RepairError, match="is still bad: not framed"):
        replaying(topic, settings, spark, schemas, repairing=plain).run()
    with pytest.raises(RepairError, match="has no key"):
        replaying(topic, settings, spark, schemas, only={(0, 2)}).run()
    assert replaying(topic, settings, spark, schemas, repairing=plain, leave_out=True).run() == Replayed(left_out=2)
    log = TableLog(spark, Warehouse.at(settings.warehouse).path(f"quarantine.{topic.name}"))
    before = log.newest_version()
    dropping = Repairing(schemas, lambda _seen: None)
    assert replaying(topic, settings, spark, schemas, repairing=dropping, only={(0, 1)}).run() == Replayed(dropped=1)
    assert log.newest_version() > (before or 0)
    assert replaying(topic, settings, spark, schemas, repairing=plain, leave_out=True).run() == Replayed(left_out=1)
    assert materialize(table, settings, spark, schemas=schemas).skipped
    assert spark.table("compacted.readings").count() == 1
