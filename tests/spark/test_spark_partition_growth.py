"""
Topics that get more partitions under tables that need an order: what a table reads when, against a plain fold.

Each event is numbered by its producer, and the producers of a key do not learn of the growth at the same time.
"""

import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.delta import row_swap
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, Stamp, TableError
from fluvial.orchestration.run.dry_run import plan_run
from fluvial.spark.kafka import topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, compacted, count, latest, state
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan.growth import may_join, seen_growth
from fluvial.tables.plan.planning import plan_span
from fluvial.tables.plan.table_index import TableIndexes

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Step",
    "fields": [{"name": "id", "type": "string"}, {"name": "producer", "type": "int"}, {"name": "n", "type": "int"}],
}
KEYS = [f"key-{number}" for number in range(12)]
HOUR_MS = 3_600_000


def in_sequence(seen: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """All that came, in the order in which it came."""
    before = "" if seen is None else seen["seen"]
    return {"seen": before + "".join(f" {event['producer']}:{event['n']}" for event in events)}


class Writers:
    """Two producers of the same keys, which hash them onto as many partitions as each knows of."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._number = 0
        self.counts = [topic.partitions, topic.partitions]

    def write(self, events: int, dice: random.Random) -> None:
        sent = []
        for _ in range(events):
            key, producer = dice.choice(KEYS), dice.randrange(2)
            self._number += 1
            partition = zlib.crc32(key.encode()) % self.counts[producer]
            value = {"id": key, "producer": producer, "n": self._number}
            sent.append(Sent(key=key, value=value, partition=partition))
        self._topic.send(sent)

    def by_key(self) -> dict[str, list[tuple[int, int]]]:
        """Producer and number of each event of a key, by partition and offset."""
        found: dict[str, list[tuple[int, int]]] = {}
        for _, _, sent in self._topic.in_order():
            assert sent.key is not None
            assert sent.value is not None
            found.setdefault(sent.key, []).append((sent.value["producer"], sent.value["n"]))
        return found


def declarations(topic: Topic) -> list[Declaration]:
    return [
        state("seen", topic=topic.name, key="id", reduce=in_sequence, returns="seen STRING"),
        state("folded", topic=topic.name, key="id", fields={"n": latest("n"), "events": count()}),
        compacted(topic.name, name="newest"),
    ]


def rows_of(spark: Any, table: str, *columns: str) -> dict[str, Any]:
    return {row[0]: row[1:] for row in spark.table(table).select(*columns).collect()}


@pytest.mark.rota
@pytest.mark.parametrize(("seed", "records_max"), [(1, None), (2, 25)])
def test_a_tables_keys_keep_their_order_while_its_topic_grows(
    settings: Settings, spark: Any, admin: AdminClient, make_topic: Any, schemas: Schemas, seed: int, records_max: Any
) -> None:
    dice = random.Random(seed)
    topic: Topic = make_topic(SCHEMA, partitions=2)
    writers, indexes = Writers(topic), TableIndexes()
    patient, joining = (replace(settings, metadata_max_age_ms=age) for age in (HOUR_MS, 0))
    stamps = {}

    def bring_up(settings: Settings, times: int | None = None) -> None:
        for declaration in declarations(topic):
            done = 0
            while times is None or done < times:
                result = materialize(
                    declaration, settings, spark, schemas=schemas, indexes=indexes, records_max=records_max
                )
                done += 1
                if result.skipped:
                    break
            log = TableLog(None, Warehouse.at(settings.warehouse).path(declaration.table))
            stamps[declaration.table] = Stamp.of(next(iter(log.newest_first())))

    writers.write(20, dice)
    bring_up(patient)
    admin.create_partitions([NewPartitions(topic.name, 4)])[topic.name].result(30)
    for knowing in ([4, 2], [4, 4]):
        writers.counts = knowing
        writers.write(80, dice)
        bring_up(patient, times=None if records_max is None else 3)
        for stamp in stamps.values():
            assert stamp is not None
            assert stamp.growth is not None
            assert stamp.growth.count == 4
            assert set(stamp.offsets) == {0, 1}
    planned = plan_run({each.table: each for each in declarations(topic)}, patient)
    assert [(set(each.ranges), each.problem) for each in planned] == [({0, 1}, None)] * 3
    # Now everyone knows of them.
    for _ in range(2):
        bring_up(joining, times=2)
        writers.write(40, dice)
    bring_up(joining)
    for stamp in stamps.values():
        assert stamp is not None
        assert stamp.growth is None
        assert set(stamp.offsets) == {0, 1, 2, 3}

    expected = writers.by_key()
    for events in expected.values():
        for producer in range(2):
            numbers = [number for each, number in events if each == producer]
            assert numbers == sorted(numbers), "the test itself: a producer's events are in order"
    assert rows_of(spark, "state.seen", "id", "seen") == {
        key: ("".join(f" {producer}:{number}" for producer, number in events),) for key, events in expected.items()
    }
    assert rows_of(spark, "state.folded", "id", "n", "events") == {
        key: (events[-1][1], len(events)) for key, events in expected.items()
    }
    assert rows_of(spark, "compacted.newest", "id", "n") == {key: (events[-1][1],) for key, events in expected.items()}
    for declaration in declarations(topic):
        assert verify(declaration, settings, spark, schemas=schemas).is_exact


@pytest.mark.rota
def test_without_waiting_a_key_is_out_of_order(
    settings: Settings, spark: Any, admin: AdminClient, make_topic: Any, schemas: Schemas
) -> None:
    """What the test above guards against does happen."""
    dice = random.Random(4)
    topic: Topic = make_topic(SCHEMA, partitions=2)
    writers, hasty = Writers(topic), replace(settings, metadata_max_age_ms=0)
    declaration = declarations(topic)[0]
    writers.write(20, dice)
    materialize(declaration, hasty, spark, schemas=schemas)
    admin.create_partitions([NewPartitions(topic.name, 4)])[topic.name].result(30)
    writers.counts = [4, 2]
    for _ in range(2):
        writers.write(80, dice)
        materialize(declaration, hasty, spark, schemas=schemas)
    expected = {
        key: ("".join(f" {producer}:{number}" for producer, number in events),)
        for key, events in writers.by_key().items()
    }
    assert rows_of(spark, "state.seen", "id", "seen") != expected
    assert not verify(declaration, settings, spark, schemas=schemas).is_exact


def test_an_open_transaction_in_an_old_partition_is_waited_for(
    settings: Settings, admin: AdminClient, make_topic: Any
) -> None:
    topic: Topic = make_topic(SCHEMA, partitions=1)
    # As it was when the growth was seen, an hour ago.
    hour_ago = int(time.time() * 1000) - HOUR_MS
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "transactional.id": topic.name, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"held", b"key", partition=0, timestamp=hour_ago)
    producer.flush(30)
    admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result(30)
    topic.schemas.register(topic.subject, SCHEMA)
    topic.send([Sent(key="key", value={"id": "key", "producer": 0, "n": 1}, partition=1)])
    stamp = Stamp(topic=topic.name, topic_id=None, batch=1, offsets={0: (0, 0)})
    position = Position(version=0, stamp=stamp)

    def joins(age_ms: int) -> bool:
        bounds = topic_bounds(settings.cluster, topic.name)
        growth = seen_growth("state.s", plan_span("state.s", position, bounds), position, hour_ago)
        assert growth is not None
        now_ms = int(time.time() * 1000)
        return may_join(growth, bounds, [0], settings.cluster, now_ms=now_ms, age_ms=age_ms)

    assert not joins(60_000)
    producer.commit_transaction(30)
    assert joins(60_000)
    assert not joins(2 * HOUR_MS), "not every producer knows of it"


@pytest.mark.rota
@pytest.mark.parametrize("swaps", [pytest.param(True, id="swap"), pytest.param(False, id="merge")])
def test_records_of_added_partitions_come_though_the_old_ones_have_none(
    settings: Settings,
    spark: Any,
    admin: AdminClient,
    make_topic: Any,
    schemas: Schemas,
    monkeypatch: pytest.MonkeyPatch,
    swaps: bool,
) -> None:
    if not swaps:
        monkeypatch.setattr(row_swap, "DELTA_VERSIONS", frozenset())
    topic: Topic = make_topic(SCHEMA, partitions=1)
    patient, joining = (replace(settings, metadata_max_age_ms=age) for age in (HOUR_MS, 0))
    tables = declarations(topic)

    def bring_up(settings: Settings) -> list[bool]:
        return [materialize(table, settings, spark, schemas=schemas).skipped for table in tables]

    topic.send([Sent(key="key-1", value={"id": "key-1", "producer": 0, "n": 1})])
    bring_up(patient)
    admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result(30)
    topic.send([Sent(key="key-1", value={"id": "key-1", "producer": 0, "n": 2}, partition=1)])
    assert bring_up(patient) == [False] * 3, "each notes the time in an empty commit"
    assert bring_up(patient) == [True] * 3
    assert rows_of(spark, "compacted.newest", "id", "n") == {"key-1": (1,)}
    assert bring_up(joining) == [False] * 3
    assert rows_of(spark, "state.seen", "id", "seen") == {"key-1": (" 0:1 0:2",)}
    assert rows_of(spark, "state.folded", "id", "n", "events") == {"key-1": (2, 2)}
    assert rows_of(spark, "compacted.newest", "id", "n") == {"key-1": (2,)}
    assert bring_up(patient) == [True] * 3


def test_a_growth_by_no_multiple_stops_the_table(
    settings: Settings, spark: Any, admin: AdminClient, make_topic: Any, schemas: Schemas
) -> None:
    topic: Topic = make_topic(SCHEMA, partitions=2)
    topic.send([Sent(key="key-1", value={"id": "key-1", "producer": 0, "n": 1})])
    table = compacted(topic.name, name="newest")
    materialize(table, settings, spark, schemas=schemas)
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(30)
    with pytest.raises(TableError, match="grew from 2 to 3 partitions, which is no multiple"):
        materialize(table, settings, spark, schemas=schemas)
