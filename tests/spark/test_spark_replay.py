"""
A history's ranges of time: run in any order, run again, run while other runs go on; and back from versions to offsets.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from log_topic import Schemas, Topic, framed

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.provenance import Sighting, offsets_of_version, versions_of_offset
from fluvial.delta.stamp import TableError
from fluvial.spark.offset_times import Window
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import History, history
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.replay.history import materialize_window, rewrite

pytestmark = pytest.mark.spark

SCHEMA = {"type": "record", "name": "Reading", "fields": [{"name": "n", "type": "int"}]}
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def send(topic: Topic, records: Sequence[tuple[int, int, int]]) -> None:
    """Append (partition, minutes after the start, n); the time is the record's own."""
    first = topic.schemas.versions_of_subject(topic.subject)[0]
    identity, text = first.id, first.schema
    assert text
    producer = Producer({"bootstrap.servers": topic.bootstrap_servers, "acks": "all", "log_level": 0})
    for partition, minute, n in records:
        producer.produce(
            topic.name, framed(identity, SCHEMA, {"n": n}), partition=partition, timestamp=START_MS + minute * 60_000
        )
    assert producer.flush(30) == 0


def hour(number: int) -> Window:
    return Window(start_ms=START_MS + number * HOUR_MS, end_ms=START_MS + (number + 1) * HOUR_MS)


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=2, config={"retention.ms": "-1"})
    # The third record of partition 0 comes late: it lies behind one of the second hour, and so in that hour's range.
    send(made, [(0, 5, 1), (0, 70, 2), (0, 20, 3), (0, 130, 4), (1, 10, 5), (1, 140, 6), (1, 150, 7)])
    return made


@pytest.fixture
def readings(topic: Topic) -> History:
    return history(topic.name, name="readings")


def rows_of(spark: Any, settings: Settings) -> list[tuple[int, int, int]]:
    path = Warehouse.at(settings.warehouse).path("history.readings")
    rows = spark.read.format("delta").load(path).select("_partition", "_offset", "n").collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.rota
def test_hours_in_any_order_and_again_leave_each_record_once(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, readings: History
) -> None:
    def run(number: int) -> Any:
        return materialize_window(readings, settings, spark, hour(number), schemas=schemas)

    second = run(1)
    assert second.offsets == {0: (1, 3), 1: (1, 1)}
    # What lies below an hour comes into the table with it.
    assert rows_of(spark, settings) == [(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 5)]
    first = run(0)
    assert (first.offsets, first.rows, first.skipped) == ({0: (0, 1), 1: (0, 1)}, 2, False)
    send(topic, [(0, 200, 8)])
    third = run(2)
    assert (third.offsets, third.rows) == ({0: (3, 4), 1: (1, 3)}, 3)
    before = rows_of(spark, settings)
    again = run(2)
    assert (again.offsets, again.rows) == (third.offsets, third.rows)
    assert rows_of(spark, settings) == before
    materialize(readings, settings, spark, schemas=schemas)
    assert rows_of(spark, settings) == [*before[:4], (0, 4, 8), *before[4:]]
    verdict = verify(readings, settings, spark, schemas=schemas)
    assert verdict.is_exact, verdict
    log = TableLog(spark, Warehouse.at(settings.warehouse).path(readings.table))
    assert dict(offsets_of_version(log, 0).ends) == {0: 3, 1: 1}
    again = offsets_of_version(log, 1)
    assert (again.rewritten, again.read, again.ends) == (True, {0: (0, 1), 1: (0, 1)}, {0: 3, 1: 1})
    assert dict(offsets_of_version(log).ends) == {0: 5, 1: 3}
    newest = log.newest_version()
    assert newest == 4
    assert versions_of_offset(log, 0, 0) == Sighting(first=0, newest=4, rewritten=(1,))
    assert versions_of_offset(log, 1, 2) == Sighting(first=2, newest=4, rewritten=(3,))
    assert versions_of_offset(log, 0, 5) is None
    with pytest.raises(TableError, match="its versions are 0 to 4"):
        offsets_of_version(log, 9)


def test_rows_that_the_log_no_longer_holds_are_never_taken_away(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, readings: History, admin: Any
) -> None:
    from confluent_kafka import TopicPartition

    materialize(readings, settings, spark, schemas=schemas)
    before = rows_of(spark, settings)
    for future in admin.delete_records([TopicPartition(topic.name, 0, 2)]).values():
        future.result(30)
    again = rewrite(readings, settings, spark, {0: (0, 4)}, schemas=schemas)
    assert (again.offsets, rows_of(spark, settings)) == ({0: (2, 4)}, before)
    # The schema that the records name is known no longer: as if they had been compacted away.
    schemas.delete_subject(topic.subject)
    schemas.delete_subject(topic.subject, permanent=True)
    schemas.register(topic.subject, {**SCHEMA, "doc": "Registered again, under another id."})
    with pytest.raises(TableError, match=r"no longer decode \(2, the first at partition 0, offset 2\)"):
        rewrite(readings, settings, spark, {0: (0, 4)}, schemas=schemas)
    assert rows_of(spark, settings) == before
