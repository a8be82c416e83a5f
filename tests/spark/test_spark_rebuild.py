"""
A table built again beside the live one, and put in its place by one commit.
"""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from log_topic import Schemas, Topic
from plain_fold import FIELDS, SCHEMA, plain_compacted, plain_state, random_events

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import TableError
from fluvial.tables import compacted, history, state
from fluvial.tables.drive import rebuild as rebuilding
from fluvial.tables.drive.rebuild import ASIDE, IncompleteLogError, rebuild
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark

FEWER = {name: FIELDS[name] for name in ("events", "total")}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours may catch it."""


def newest_version(spark: Any, settings: Settings, table: str) -> int | None:
    return TableLog(spark, f"{settings.warehouse}/{table.replace('.', '/')}").newest_version()


def state_of(topic: Topic, fields: Any = FIELDS) -> Any:
    return state("readings", topic=topic.name, key="id", fields=fields)


def assert_is_the_fold(spark: Any, topic: Topic) -> None:
    rows = spark.table("state.readings").collect()
    assert {row.id: {name: row[name] for name in FIELDS} for row in rows} == plain_state(topic)
    assert len(rows) == len({row.id for row in rows})


@pytest.mark.rota
def test_changed_fields_are_folded_from_the_beginning_through_a_kill(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    topic.send(random_events(1, 40, partitions=2))
    materialize(state_of(topic, FEWER), settings, spark, schemas=schemas)
    before = newest_version(spark, settings, "state.readings")
    old = sorted(map(str, spark.table("state.readings").collect()))
    with pytest.raises(TableError, match=r"fluvial run --rebuild state\.readings"):
        materialize(state_of(topic), settings, spark, schemas=schemas)

    # Killed after the first of its batches: the live table is as it was, and what was built is gone on with.
    monkeypatch.setattr(rebuilding, "RECORDS_MAX", 30)

    def killed(_batch: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        rebuild(state_of(topic), settings, spark, schemas=schemas, progress=killed)
    assert sorted(map(str, spark.table("state.readings").collect())) == old
    batches: list[Any] = []

    def meanwhile(batch: Any) -> None:
        batches.append(batch)
        if batch.skipped and sum(each.skipped for each in batches) == 1:
            # Everything is built; now a run of the old declaration comes first with what is new.
            topic.send(random_events(3, 20, partitions=2))
            materialize(state_of(topic, FEWER), settings, spark, schemas=schemas)

    done = rebuild(state_of(topic), settings, spark, schemas=schemas, progress=meanwhile)
    assert min(start for start, _ in batches[0].offsets.values()) > 0, "it did not begin again"
    assert before is not None
    assert (done.version_before, done.version_after) == (before + 1, before + 2), "one commit beside the other run's"
    assert_is_the_fold(spark, topic)
    assert not (Path(settings.warehouse) / ASIDE / "state.readings").exists()

    topic.send(random_events(4, 20, partitions=2))
    assert not materialize(state_of(topic), settings, spark, schemas=schemas).skipped
    assert_is_the_fold(spark, topic)


@pytest.mark.rota
def test_a_restored_table_is_made_whole_and_a_log_without_its_beginning_is_refused(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, admin: Any
) -> None:
    topic = make_topic(SCHEMA)
    tables = history(topic.name, name="readings"), compacted(topic.name, name="readings", key="id")
    for seed in (5, 6):
        topic.send(random_events(seed, 15, partitions=1))
        for table in tables:
            materialize(table, settings, spark, schemas=schemas)
    for table in tables:
        spark.sql(f"RESTORE TABLE {table.table.replace('history', '`history`')} TO VERSION AS OF 0").collect()
        with pytest.raises(TableError, match="--rebuild"):
            materialize(table, settings, spark, schemas=schemas)
        rebuild(table, settings, spark, schemas=schemas)
        assert materialize(table, settings, spark, schemas=schemas).skipped
    offsets = [row._offset for row in spark.table("history.readings").orderBy("_offset").collect()]
    assert offsets == [offset for _, offset, record in topic.in_order() if record.decodes]
    assert {row.id: row._offset for row in spark.table("compacted.readings").collect()} == {
        key: row["_offset"] for key, row in plain_compacted(topic).items()
    }

    for deleted in admin.delete_records([TopicPartition(topic.name, 0, 10)]).values():
        deleted.result(30)
    with pytest.raises(IncompleteLogError, match="partition 0 begins at offset 10") as refused:
        rebuild(tables[0], settings, spark, schemas=schemas)
    assert refused.value.starts == {0: 10}
    assert spark.table("history.readings").count() == len(offsets)
    rebuild(tables[0], settings, spark, schemas=schemas, from_what_is_left=True)
    assert spark.table("history.readings").agg({"_offset": "min"}).collect()[0][0] >= 10
