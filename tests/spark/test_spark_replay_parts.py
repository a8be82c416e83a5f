"""
Ranges of offsets and of time made again, in any order and twice: each table is what a rebuild makes of it.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from damaged_tables import OFF, add_off, damage, rows_of
from log_topic import Schemas, Sent, Topic
from pyspark.sql import functions as sql

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.delta.provenance import offsets_of_version
from fluvial.spark.offset_times import Window
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import (
    Declaration,
    DeclarationError,
    Pipeline,
    aggregate,
    compacted,
    count,
    history,
    hopping,
    latest,
    mean,
    pipeline,
    publish,
    session,
    state,
    streaming,
    sum_,
    tumbling,
)
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.replay.replay import replay
from fluvial.tables.replay.stretch import Stretch

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Spent",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
HOURS = 6
SPENT = "history.spent"
ENDED = "c8"
SEEDS = range(4)


def events(random: Random, number: int) -> Iterator[Sent]:
    """Events of eight customers in the order of their time, more or less; two of them come late, one is ended."""
    moments = sorted(random.randrange(HOURS * 60) for _ in range(number))
    moments[3], moments[-3] = moments[-3], moments[3]
    for minute in moments:
        customer, at = random.randrange(9), START_MS + minute * 60_000
        value = {
            "customer": f"c{customer}",
            "amount": random.randrange(100),
            "at": datetime.fromtimestamp(at / 1000, UTC),
        }
        yield Sent(key=f"c{customer}", value=value, partition=customer % 2, timestamp_ms=at)
    yield Sent(key=ENDED, partition=0, timestamp_ms=START_MS + HOURS * HOUR_MS - 1)


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA, partitions=2, config={"retention.ms": "-1"})
    return made


def reduced(before: Any, came: Iterator[Any]) -> Any:
    for event in came:
        before = {"amount": (0 if before is None else before["amount"]) * 2 % 1009 + event["amount"]}
    return before


def of_topic(topic: str) -> list[Declaration]:
    """A table of each kind; of the last one the order of all events decides."""
    folds = {"n": count(), "amount": sum_("amount"), "mean": mean("amount")}
    return [
        history(topic, name="spent"),
        compacted(topic, name="latest", key="customer"),
        state("spending", topic=topic, key="customer", fields=folds),
        state("versions", topic=topic, key="customer", fields={"amount": latest("amount")}, scd2="at"),
        state("reduced", topic=topic, key="customer", reduce=reduced, returns="amount INT"),
    ]


def by_windows(rows: Any, *columns: str) -> Any:
    return rows.groupBy("customer", *columns).agg(sql.count("*").alias("n"), sql.sum("amount").alias("amount"))


def marts() -> list[Pipeline]:
    """With and without windows, of each kind."""
    windows = ("window_start", "window_end")
    hopped, sessions = hopping("at", "2 hours", "1 hour"), session("at", "20 minutes")
    keyed: dict[str, Any] = {"inputs": {SPENT: "customer"}, "key": "customer", "version": "1"}
    return [
        aggregate(SPENT, name="by_hour", by="customer", fields={"n": count(), "amount": sum_("amount")},
                  where="customer IS NOT NULL", window=tumbling("at", "1 hour")),
        pipeline(name="hopped", windows={SPENT: hopped}, **keyed)(lambda rows: by_windows(rows, *windows)),
        pipeline(name="visits", windows={SPENT: sessions}, **keyed)(lambda rows: by_windows(rows, *windows)),
        pipeline(name="by_customer", **keyed)(by_windows),
    ]  # fmt: skip


def pieces(random: Random, ends: Sequence[int]) -> list[Stretch]:
    """Ranges of offsets that together are all of the topic, in any order, and one of them twice."""
    found = []
    for partition, end in enumerate(ends):
        cuts = sorted({0, end, random.randrange(end)})
        found += [{partition: (start, until)} for start, until in pairwise(cuts)]
    # One stretch may be of both partitions.
    found[0] = found[0] | found.pop()
    return _shuffled(random, [Stretch(offsets={"": each}) for each in found])


def stretches(random: Random) -> list[Stretch]:
    """Times that together are all there are, in any order, and one of them twice."""
    # A window of two hours begins an hour before its first row.
    cuts = sorted({-1, HOURS + 1, random.randrange(1, HOURS)})
    return _shuffled(random, [Stretch(window=hours(*each)) for each in pairwise(cuts)])


def _shuffled(random: Random, found: list[Stretch]) -> list[Stretch]:
    found.append(random.choice(found))
    random.shuffle(found)
    return found


def hours(first: int, until: int) -> Window:
    return Window(start_ms=START_MS + first * HOUR_MS, end_ms=START_MS + until * HOUR_MS)


def of(stretch: Stretch, topic: Topic) -> Stretch:
    """The same offsets of the topic that there is."""
    return stretch if stretch.window is not None else Stretch(offsets={topic.name: stretch.offsets[""]})


@pytest.mark.rota
@pytest.mark.parametrize("seed", SEEDS)
def test_ranges_of_a_topic_in_any_order_leave_what_a_rebuild_makes(
    seed: int, spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    random = Random(seed)
    tables = of_topic(topic.name)
    sent = [*events(random, 40)]
    for batch in (sent[:15], sent[15:]):
        topic.send(batch)
        for table in tables:
            materialize(table, settings, spark, schemas=schemas)
    ends = [len(topic.sent[partition]) for partition in (0, 1)]
    # What a table has not read is no part of what is made again.
    topic.send([*events(random, 6)])
    for table in tables:
        right = rows_of(spark, settings, table.table)
        key = "_offset" if table.kind == "history" else "customer"
        damage(spark, settings, table.table, "amount", key=key, ghost=None if table.kind == "history" else ENDED)
        assert rows_of(spark, settings, table.table) != right
        wanted = pieces(random, ends) if random.random() < 0.6 else stretches(random)
        for stretch in wanted:
            done = replay(table, settings, spark, of(stretch, topic), schemas=schemas)
            assert not done.skipped
        if table.kind == "history" and wanted[0].window is not None:
            # A stretch of time brings a history up to its end.
            materialize(table, settings, spark, schemas=schemas)
        else:
            assert rows_of(spark, settings, table.table) == right
        again = replay(table, settings, spark, of(wanted[0], topic), schemas=schemas)
        log = TableLog(spark, Warehouse.at(settings.warehouse).path(table.table))
        holding = offsets_of_version(log, again.version_after)
        assert holding.rewritten or again.skipped
        materialize(table, settings, spark, schemas=schemas)
        verdict = verify(table, settings, spark, schemas=schemas)
        assert verdict.is_exact, (table.table, verdict)


@pytest.mark.rota
@pytest.mark.parametrize("seed", SEEDS)
def test_ranges_of_marts_in_any_order_leave_what_the_batch_query_makes(
    seed: int, spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    random = Random(seed)
    topic.send([*events(random, 40)])
    materialize(history(topic.name, name="spent"), settings, spark, schemas=schemas)
    ends = [len(topic.sent[partition]) for partition in (0, 1)]
    for mart in marts():
        materialize(mart, settings, spark)
        right = rows_of(spark, settings, mart.table)
        log = TableLog(spark, Warehouse.at(settings.warehouse).path(mart.table))
        by_time = random.random() < 0.6
        # A window of which there is no row in the inputs is known by its own time.
        ghost = "ghost" if by_time and mart.has_time_windows else None
        damage(spark, settings, mart.table, "amount", key="customer", ghost=ghost)
        for stretch in stretches(random) if by_time else pieces(random, ends):
            done = replay(mart, settings, spark, of(stretch, topic))
            made = newest_made(log)
            assert made is not None
            assert (made.commit.version, made.stamp.refresh and made.stamp.refresh.road) == (done.version_after, "keys")
        assert rows_of(spark, settings, mart.table) == right, mart.table
        verdict = verify(mart, settings, spark, schemas=schemas)
        assert verdict.is_exact, (mart.table, verdict)


@pytest.mark.rota
def test_only_what_a_range_touches_is_made_again(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    topic.send(
        [
            Sent(key=key, value={"customer": key, "amount": 1, "at": datetime.fromtimestamp(START_MS / 1000 + at, UTC)},
                 timestamp_ms=START_MS + at * 1000)
            for key, at in (("a", 0), ("b", 60), ("a", 7200), ("c", 7300), ("d", 10_900))
        ]
    )  # fmt: skip
    spending = state("spending", topic=topic.name, key="customer", fields={"amount": sum_("amount")})
    by_hour, *_ = marts()
    for table in (history(topic.name, name="spent"), spending, by_hour):
        materialize(table, settings, spark, schemas=schemas)
    for table in (spending, by_hour):
        add_off(spark, settings, table.table, "amount")

    def found(table: Declaration) -> dict[str, int]:
        rows = spark.read.format("delta").load(Warehouse.at(settings.warehouse).path(table.table))
        hour = f"(unix_millis(window_start) - {START_MS}L) DIV {HOUR_MS}" if table is by_hour else "''"
        return {row[0]: row[1] for row in rows.selectExpr(f"concat(customer, {hour})", "amount").collect()}

    # The record at offset 2 is of the key "a", whose row is made of the one at offset 0 too.
    done = replay(spending, settings, spark, Stretch(offsets={topic.name: {0: (2, 3)}}), schemas=schemas)
    assert (done.offsets, done.rows) == ({0: (2, 3)}, 1)
    assert found(spending) == {"a": 2, "b": OFF + 1, "c": OFF + 1, "d": OFF + 1}
    replay(spending, settings, spark, Stretch(window=hours(0, 1)), schemas=schemas)
    assert found(spending) == {"a": 2, "b": 1, "c": OFF + 1, "d": OFF + 1}
    replay(by_hour, settings, spark, Stretch(window=hours(2, 3)))
    assert found(by_hour) == {"a0": OFF + 1, "b0": OFF + 1, "a2": 1, "c2": 1, "d3": OFF + 1}
    replay(by_hour, settings, spark, Stretch(offsets={topic.name: {0: (1, 2)}}))
    assert found(by_hour) == {"a0": OFF + 1, "b0": 1, "a2": 1, "c2": 1, "d3": OFF + 1}
    nothing = replay(by_hour, settings, spark, Stretch(window=hours(7, 9)))
    assert nothing.skipped
    assert replay(spending, settings, spark, Stretch(offsets={topic.name: {0: (9, 12)}}), schemas=schemas).skipped


@pytest.mark.rota
def test_a_key_whose_first_records_are_gone_is_not_folded_again(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic, make_topic: Any, admin: Any
) -> None:
    topic.send([*events(Random(1), 10)])
    spending = state("spending", topic=topic.name, key="customer", fields={"n": count(), "amount": sum_("amount")})
    kept = history(topic.name, name="spent")
    everything = Stretch(offsets={topic.name: {0: (0, 99), 1: (0, 99)}})
    with pytest.raises(TableError, match=r"state\.spending does not exist: run it first"):
        replay(spending, settings, spark, everything, schemas=schemas)
    for table in (spending, kept):
        materialize(table, settings, spark, schemas=schemas)
    before = rows_of(spark, settings, spending.table)
    add_off(spark, settings, spending.table, "amount")
    for future in admin.delete_records([TopicPartition(topic.name, 0, 2)]).values():
        future.result(30)
    with pytest.raises(TableError, match=r"partition 0 begins at offset 2 by now.*--rebuild state\.spending --from-w"):
        replay(spending, settings, spark, everything, schemas=schemas)
    late = history(topic.name, name="late")
    materialize(late, settings, spark, schemas=schemas)
    with pytest.raises(TableError, match="no declared history has every record"):
        replay(spending, settings, spark, everything, declared=[late], schemas=schemas)
    assert rows_of(spark, settings, spending.table) != before
    said: list[str] = []
    replay(spending, settings, spark, everything, declared=[late, kept], schemas=schemas, progress=said.append)
    assert rows_of(spark, settings, spending.table) == before
    assert any(line.endswith("keys again, from history.spent") for line in said)
    add_off(spark, settings, spending.table, "amount")
    # Times that the log does not reach back to are those of the history's rows.
    for window in (hours(0, 3), hours(3, HOURS)):
        replay(spending, settings, spark, Stretch(window=window), declared=[kept], schemas=schemas)
    assert rows_of(spark, settings, spending.table) == before
    short = make_topic(SCHEMA, config={"cleanup.policy": "compact"})
    short.send([Sent(key="a", value={"customer": "a", "amount": 1, "at": datetime.fromtimestamp(1, UTC)})])
    of_latest = state("of_latest", topic=short.name, key="customer", fields={"n": count()})
    newest = compacted(short.name, name="newest", key="customer")
    for table in (of_latest, newest):
        materialize(table, settings, spark, schemas=schemas)
    with pytest.raises(TableError, match="which compaction takes older ones out of"):
        replay(of_latest, settings, spark, Stretch(offsets={short.name: {0: (0, 1)}}), schemas=schemas)
    assert replay(newest, settings, spark, Stretch(offsets={short.name: {0: (0, 1)}}), schemas=schemas).rows == 1
    assert rows_of(spark, settings, spending.table) == before


def test_a_table_of_which_no_part_can_be_made_again_says_so(spark: Any, settings: Settings) -> None:
    rows = spark.createDataFrame([("a", 1)], "customer string, amount int")
    rows.write.format("delta").save(f"{settings.warehouse}/state/spending")
    rows.write.format("delta").save(f"{settings.warehouse}/history/spent")
    inputs: Any = ["state.spending"]
    cases: list[tuple[Declaration, str]] = [
        (pipeline(name="whole", inputs=inputs, version="1")(lambda rows: rows), r"marts\.whole has no key, so nothing"),
        (streaming(name="query", inputs=[SPENT], version="1")(lambda rows: rows), "is made by a streaming query"),
        (pipeline(name="keyed", inputs=inputs, key="customer", version="1")(by_windows), "has no windows and no input"),
        (publish("state.spending", topic="spending", key="customer"), r"topics\.spending is a topic.*replay state"),
    ]
    for declaration, why in cases:
        if declaration.table == "marts.keyed":
            materialize(declaration, settings, spark)
        with pytest.raises(DeclarationError, match=why):
            replay(declaration, settings, spark, Stretch(window=hours(0, 1)))


def test_a_mart_that_somebody_else_wrote_to_is_written_whole(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    topic.send([*events(Random(2), 10)])
    by_hour, *_ = marts()
    for table in (history(topic.name, name="spent"), by_hour):
        materialize(table, settings, spark, schemas=schemas)
    right = rows_of(spark, settings, by_hour.table)
    path = Warehouse.at(settings.warehouse).path(by_hour.table)
    spark.sql(f"DELETE FROM delta.`{path}`")
    said: list[str] = []
    replay(by_hour, settings, spark, Stretch(window=hours(0, 1)), progress=said.append)
    assert rows_of(spark, settings, by_hour.table) == right
    assert any("is not fluvial's (DELETE)" in line for line in said)
