"""
A run that is killed, repeated, or run by two drivers at once leaves the tables that one undisturbed run leaves.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from log_topic import Schemas, Sent, Topic
from plain_fold import FIELDS, SCHEMA, plain_state, random_events

from fluvial.config import Settings
from fluvial.delta import commit as delta_commit
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp, TableError
from fluvial.spark.kafka import TopicError
from fluvial.tables import Declaration, compacted, history, state
from fluvial.tables.drive import runner
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.planning import GapError

pytestmark = pytest.mark.spark

# What is written by appending, and what by key; the third is written by key as well.
KINDS = ["history", "state", pytest.param("compacted", marks=pytest.mark.rota)]

GOOD = {"kind": "up", "amount": 1, "weight": None, "at": 0}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours may catch it."""


def table_of(kind: str, topic: Topic) -> Declaration:
    match kind:
        case "history":
            return history(topic.name, name="readings")
        case "compacted":
            return compacted(topic.name, name="readings", key="id")
        case _:
            return state("readings", topic=topic.name, key="id", fields=FIELDS)


def rows_of(spark: Any, table: str) -> list[str]:
    return sorted(str(row) for row in spark.table(table).collect())


def stamps(spark: Any, settings: Settings, table: str) -> list[Stamp]:
    found = [Stamp.of(commit) for commit in log_of(spark, settings, table).newest_first()]
    return [stamp for stamp in reversed(found) if stamp is not None]


def log_of(spark: Any, settings: Settings, table: str) -> TableLog:
    return TableLog(spark, f"{settings.warehouse}/{table.replace('.', '/')}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_commit_names_the_offsets_that_it_holds(
    kind: str, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table = table_of(kind, topic)
    for seed in (1, 2):
        topic.send(random_events(seed, 20, partitions=2))
        materialize(table, settings, spark, schemas=schemas)
    first, second = stamps(spark, settings, table.table)
    assert (first.topic, first.batch, second.batch) == (topic.name, 1, 2)
    for partition, records in topic.sent.items():
        assert first.offsets[partition][0] == 0
        assert second.offsets[partition] == (first.offsets[partition][1], len(records))
    # The same in Delta's own terms, for whoever reads the table without us.
    row = spark.sql(f"DESCRIBE HISTORY `{kind}`.readings LIMIT 1").collect()[0]
    assert json.loads(row.userMetadata)["fluvial"]["offsets"] == {
        str(partition): list(span) for partition, span in second.offsets.items()
    }


def test_the_position_is_shown_as_a_consumer_group(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table = history(topic.name, name=topic.name)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_servers})
    group = ConsumerGroupTopicPartitions(
        f"fluvial.{table.table}", [TopicPartition(topic.name, each) for each in (0, 1)]
    )

    def shown() -> dict[int, int]:
        answer = admin.list_consumer_group_offsets([group])[group.group_id].result()
        return {place.partition: place.offset for place in answer.topic_partitions}

    for seed in (1, 2):
        topic.send(random_events(seed, 20, partitions=2))
        materialize(table, settings, spark, schemas=schemas)
        assert shown() == {partition: len(records) for partition, records in topic.sent.items()}
    admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group.group_id, [TopicPartition(topic.name, 0, 3)])]
    )[group.group_id].result()
    assert materialize(table, settings, spark, schemas=schemas).skipped, "nobody reads by what is shown"
    assert shown()[0] == len(topic.sent[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_after_its_commit_is_not_repeated(
    kind: str, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table = table_of(kind, topic)
    topic.send(random_events(5, 60, partitions=2))
    materialize(table, settings, spark, schemas=schemas)
    topic.send(random_events(6, 60, partitions=2))

    def killed(*_arguments: Any, **_keywords: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runner, "RunResult", killed)
        with pytest.raises(Killed):
            materialize(table, settings, spark, schemas=schemas)
    expected = rows_of(spark, table.table)
    assert materialize(table, settings, spark, schemas=schemas).skipped
    assert rows_of(spark, table.table) == expected
    if kind == "state":
        found = {row.id: {name: row[name] for name in FIELDS} for row in spark.table("state.readings").collect()}
        assert found == plain_state(topic)


def test_a_run_killed_between_quarantine_and_history_puts_nothing_aside_twice(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(SCHEMA)
    table = history(topic.name, name="readings")
    topic.send([Sent(key="a", value=GOOD), Sent(key="a", raw=b"bad"), Sent(key="a", value=GOOD)])
    real = delta_commit.append

    def killed_at_history(frame: Any, path: str, stamp: Stamp, *properties: Any) -> None:
        if "/history/" in path and any(Path(settings.warehouse, "quarantine").glob("*")):
            raise Killed
        real(frame, path, stamp, *properties)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "append", killed_at_history)
        with pytest.raises(Killed):
            materialize(table, settings, spark, schemas=schemas)
    assert spark.table(f"quarantine.{topic.name}").count() == 1
    result = materialize(table, settings, spark, schemas=schemas)
    assert (result.rows, result.quarantined) == (2, 0)
    assert spark.table(f"quarantine.{topic.name}").count() == 1
    # What came after the kill is put aside all the same.
    topic.send([Sent(key="a", raw=b"bad too")])
    assert materialize(table, settings, spark, schemas=schemas).quarantined == 1
    assert [row._offset for row in spark.table(f"quarantine.{topic.name}").orderBy("_offset").collect()] == [1, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_two_drivers_at_once_enter_every_record_once(
    kind: str, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table = table_of(kind, topic)
    real = runner.commit_once
    for seed in (7, 8):  # The first round races to make the table, the second to go on with it.
        topic.send(random_events(seed, 60, partitions=2))
        both_planned = threading.Barrier(2)
        waited = threading.local()

        def together(
            *arguments: Any, barrier: threading.Barrier = both_planned, waited: Any = waited, **keywords: Any
        ) -> Any:
            if not getattr(waited, "once", False):
                waited.once = True
                barrier.wait(60)
            return real(*arguments, **keywords)

        with monkeypatch.context() as patch, ThreadPoolExecutor(2) as drivers:
            patch.setattr(runner, "commit_once", together)
            runs = [drivers.submit(materialize, table, settings, spark, schemas=schemas) for _ in range(2)]
            results = [run.result(300) for run in runs]
        assert sorted(result.skipped for result in results) == [False, True]
    assert [stamp.batch for stamp in stamps(spark, settings, table.table)] == [1, 2]
    quiet = replace(settings, warehouse=f"{settings.warehouse}-quiet")
    materialize(table, quiet, spark, schemas=schemas)
    found = spark.table(table.table)
    expected = spark.read.format("delta").load(f"{quiet.warehouse}/{table.table.replace('.', '/')}")
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.select(found.columns).collect()))


def test_delta_itself_refuses_a_batch_that_is_in_the_table(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    topic.send([Sent(key="a", value=GOOD)])
    table = history(topic.name, name="readings")
    materialize(table, settings, spark, schemas=schemas)
    log = log_of(spark, settings, table.table)
    again = Stamp(topic=topic.name, topic_id=None, batch=1, offsets={0: (0, 1)})
    rows = spark.table(table.table)
    stale = delta_commit.commit_once(log, again, above=0, write=lambda: delta_commit.append(rows, log.path, again))
    assert stale is None
    assert (log.newest_version(), rows.count()) == (0, 1)


def test_upkeep_by_others_keeps_the_position(spark: Any, settings: Settings, schemas: Schemas, make_topic: Any) -> None:
    topic = make_topic(SCHEMA)
    table = history(topic.name, name="readings")
    for _ in range(2):
        topic.send([Sent(key="a", value=GOOD)])
        materialize(table, settings, spark, schemas=schemas)
    spark.sql("OPTIMIZE `history`.readings").collect()
    assert log_of(spark, settings, table.table).newest_version() == 2
    assert materialize(table, settings, spark, schemas=schemas).skipped
    spark.sql("RESTORE TABLE `history`.readings TO VERSION AS OF 0").collect()
    with pytest.raises(TableError, match="was restored to an earlier version"):
        materialize(table, settings, spark, schemas=schemas)


def test_records_that_retention_removed_unread_are_a_loud_gap(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, admin: Any
) -> None:
    from confluent_kafka import TopicPartition

    topic = make_topic(SCHEMA)
    table = history(topic.name, name="readings")
    topic.send([Sent(key="a", value=GOOD)] * 3)
    materialize(table, settings, spark, schemas=schemas)
    topic.send([Sent(key="a", value=GOOD)] * 4)
    for deleted in admin.delete_records([TopicPartition(topic.name, 0, 5)]).values():
        deleted.result(30)
    with pytest.raises(GapError, match="offsets 3 to 4") as raised:
        materialize(table, settings, spark, schemas=schemas)
    assert raised.value.lost == {0: (3, 5)}
    # A table that has read nothing yet begins where the log does.
    fresh = materialize(history(topic.name, name="fresh"), settings, spark, schemas=schemas)
    assert dict(fresh.offsets) == {0: (5, 7)}


def test_a_topic_made_again_is_not_gone_on_with(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, admin: Any
) -> None:
    topic = make_topic(SCHEMA)
    table = history(topic.name, name="readings")
    topic.send([Sent(key="a", value=GOOD)] * 2)
    materialize(table, settings, spark, schemas=schemas)
    admin.delete_topics([topic.name])[topic.name].result(30)
    wait_until_gone(admin, topic.name)
    again = make_topic(None, name=topic.name)
    again.send([Sent(key="a", value=GOOD)] * 5)
    with pytest.raises(TableError, match="recreated"):
        materialize(table, settings, spark, schemas=schemas)


def wait_until_gone(admin: Any, topic: str) -> None:
    for _ in range(300):
        if topic not in admin.list_topics(timeout=10).topics:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{topic} is still listed")


def test_a_missing_topic_and_a_missing_broker_are_said_plainly(
    spark: Any, settings: Settings, schemas: Schemas
) -> None:
    with pytest.raises(TopicError, match="there is no topic nowhere"):
        materialize(history("nowhere"), settings, spark, schemas=schemas)
    unreachable = replace(settings, bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TopicError, match=r"no broker answers at 127\.0\.0\.1:1"):
        materialize(history("nowhere"), unreachable, spark, schemas=schemas)


def test_changed_fields_are_not_folded_into_the_old_ones(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    topic.send([Sent(key="a", value=GOOD)])
    materialize(state("readings", topic=topic.name, key="id", fields=FIELDS), settings, spark, schemas=schemas)
    fewer = {name: FIELDS[name] for name in list(FIELDS)[:2]}
    with pytest.raises(TableError, match="built with other fields"):
        materialize(state("readings", topic=topic.name, key="id", fields=fewer), settings, spark, schemas=schemas)


@pytest.mark.parametrize("more", [0, 5])
def test_a_table_that_another_driver_made_has_its_name_here_too(
    more: int, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    table = table_of("history", topic)
    topic.send(random_events(3, 20, partitions=1))
    materialize(table, settings, spark, schemas=schemas)
    # A session that began before the table was there has no name for it.
    spark.sql(f"DROP TABLE {table.table}")
    topic.send(random_events(4, more, partitions=1))
    assert materialize(table, settings, spark, schemas=schemas).skipped == (more == 0)
    assert spark.table(table.table).count() == 20 + more
