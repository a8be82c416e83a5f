"""
Random windows over random histories, refreshed at random times and stopped at each step of a commit.

Whatever happened, the table is what plain Python makes of the input at the version that the table's stamp names, and so
are the late rows.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from pyspark.sql import functions as sql
from stopped_refresh import StoppedError, stopped
from windowed_events import (
    EVENT_COLUMNS,
    EVENTS,
    PARTITIONS,
    VISITORS,
    Event,
    Topic,
    expected_rows,
    final_until,
    late_places,
    random_windows,
)

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, newest_made
from fluvial.tables import Pipeline, TimeWindows, aggregate, count, pipeline, sum_, top
from fluvial.tables.declare.windows import Emit
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.refresh import key_plan, key_refresh, late_table, part_refresh

pytestmark = [pytest.mark.spark, pytest.mark.rota]

CHANGES = 6
KINDS = ("tumbling", "hopping", "session")
EMITS: Sequence[Emit] = ("final", "changes")
ROADS = ("aggregate", "transform")
IDS_MAX = 1000


def mart_of(windows: TimeWindows, road: str) -> Pipeline:
    """By visitor and window the number of events, the sum of their amounts, and their ids."""
    if road == "aggregate":
        fields = {"n": count(), "spent": sum_("amount"), "ids": top("id", IDS_MAX)}
        return aggregate(EVENTS, name="windowed", by="visitor", fields=fields, window=windows)

    def by_window(events: Any) -> Any:
        return events.groupBy("visitor", "window_start", "window_end").agg(
            sql.count("*").alias("n"),
            sql.sum("amount").alias("spent"),
            sql.sort_array(sql.collect_list("id"), asc=False).alias("ids"),
        )

    declare = pipeline(name="windowed", inputs=[EVENTS], key="visitor", version="1", windows={EVENTS: windows})
    return declare(by_window)


@pytest.mark.parametrize("seed", range(18))
def test_windows_are_always_what_the_log_makes_of_them(
    seed: int, spark: Any, warehouse_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    topic, history = Topic(random), History(spark, warehouse_settings)
    windows = random_windows(random, KINDS[seed % len(KINDS)], EMITS[seed % len(EMITS)])
    mart = mart_of(windows, ROADS[seed // 2 % len(ROADS)])
    # Tables of this size are always cheaper by the full query.
    for module in (key_plan, part_refresh):
        monkeypatch.setattr(module, "why_full", lambda work: "it is" if work.keys and random.random() < 0.1 else None)
    history.add(topic.sent(30))
    roads = []
    for _ in range(CHANGES):
        if random.random() < 0.6:
            with stopped(random, monkeypatch, key_refresh, part_refresh, late=late_table), suppress(StoppedError):
                materialize(mart, warehouse_settings, spark)
            for _ in range(random.randint(0, 1)):
                history.add(topic.sent(random.randint(1, 10)))
        materialize(mart, warehouse_settings, spark)
        roads.append(history.check(mart, windows))
        for _ in range(random.randint(1, 2)):
            history.change(random, topic)
    materialize(mart, warehouse_settings, spark)
    roads.append(history.check(mart, windows))
    for module in (key_plan, part_refresh):
        monkeypatch.setattr(module, "why_full", lambda _work: None)
    history.add(topic.sent(10))
    materialize(mart, warehouse_settings, spark)
    assert history.check(mart, windows) == ("parts" if mart.from_parts else "keys"), (seed, str(windows), roads)
    assert verify(mart, warehouse_settings, spark, schemas=None).is_exact, (seed, str(windows), roads)  # type: ignore[arg-type]


class History:
    """The history of the topic, and what tables must be made of it."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark, self._settings = spark, settings
        self._final_rows: list[str] = []
        self._corrected = False

    def path(self, table: str) -> str:
        return f"{self._settings.warehouse}/{table.replace('.', '/')}"

    def add(self, events: Sequence[Event]) -> None:
        rows = [(each.partition, each.offset, each.id, each.visitor, each.amount, each.at) for each in events]
        frame = self._spark.createDataFrame(rows, EVENT_COLUMNS).coalesce(1)
        writer = frame.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true")
        writer.save(self.path(EVENTS))

    def change(self, random: Random, topic: Topic) -> None:
        """Add events, or correct, remove or write together some that are there."""
        name, visitor = f"delta.`{self.path(EVENTS)}`", f"v{random.randrange(VISITORS)}"
        chosen = random.choice(("add", "add", "add", "correct", "move", "remove", "erase", "optimize"))
        self._corrected |= chosen not in {"add", "optimize"}
        match chosen:
            case "correct":
                self._spark.sql(f"UPDATE {name} SET amount = amount + 5 WHERE id % 9 = {random.randrange(9)}")
            case "move":
                minutes = random.choice((-200, -20, 30))
                self._spark.sql(f"UPDATE {name} SET at = at + INTERVAL {minutes} MINUTES WHERE id % 11 = 3")
            case "remove":
                self._spark.sql(f"DELETE FROM {name} WHERE id % 13 = {random.randrange(13)} AND "
                                f"_partition = {random.randrange(PARTITIONS)}")  # fmt: skip
            case "erase":
                self._spark.sql(f"DELETE FROM {name} WHERE visitor = '{visitor}'")
            case "optimize":
                self._spark.sql(f"OPTIMIZE {name}")
            case _:
                self.add(topic.sent(random.randint(1, 12)))

    def check(self, mart: Pipeline, windows: TimeWindows) -> str:
        """Compare the table and the late rows with what they must be; the road that the table was brought there by."""
        made = newest_made(TableLog(self._spark, self.path(mart.table)))
        assert made is not None
        assert made.stamp.refresh is not None
        events = self._events(made.stamp)
        found = self._spark.read.format("delta").load(self.path(mart.table)).collect()
        rows = [
            (row.visitor, _utc(row.window_start), _utc(row.window_end), row.n, row.spent, sorted(row["ids"]))
            for row in found
        ]
        late: Sequence[Any] = ()
        final = None
        if windows.watermark is not None:
            assert made.stamp.watermarks is not None
            late = self._spark.read.format("delta").load(self.path("late.windowed")).collect()
            places = [(row._partition, row._offset, _utc(row.window_start), _utc(row.window_end)) for row in late]
            if windows.emit == "final":
                final = self._check_final(windows, events, made.stamp, places)
            else:
                assert sorted(places) == late_places(windows, events), (str(windows), made.stamp.refresh)
            assert made.stamp.watermarks.rows == len(places)
        known_late = {(row._partition, row._offset, _utc(row.window_start)) for row in late}
        expected = expected_rows(windows, events, known_late, final)
        assert sorted(rows, key=str) == expected, (str(windows), made.stamp.refresh)
        if windows.emit == "final":
            shown = [*map(str, rows)]
            assert self._corrected or set(self._final_rows) <= set(shown), "what is final stays as it is"
            self._final_rows, self._corrected = shown, False
        return made.stamp.refresh.road

    def _check_final(
        self, windows: TimeWindows, events: Sequence[Event], stamp: MartStamp, places: Sequence[Any]
    ) -> datetime | None:
        """Until when windows are final. Late is what the watermark says, and what was late for a final window once."""
        assert stamp.watermarks is not None
        until = stamp.watermarks.final
        final = None if until is None else datetime.fromtimestamp(until / 1_000_000, UTC)
        now = final_until(windows, events)
        if now is not None:
            assert final is not None
            assert final >= now
        late = late_places(windows, events)
        assert set(late) <= set(places)
        for _, _, start, _ in set(places) - set(late):
            assert final is not None
            assert start <= final
        return final

    def _events(self, stamp: MartStamp) -> list[Event]:
        version = stamp.inputs[EVENTS].version
        rows = self._spark.read.format("delta").option("versionAsOf", version).load(self.path(EVENTS)).collect()
        return [
            Event(
                partition=row._partition,
                offset=row._offset,
                id=row.id,
                visitor=row.visitor,
                amount=row.amount,
                at=None if row.at is None else _utc(row.at),
            )
            for row in rows
        ]


def _utc(moment: datetime) -> datetime:
    """A timestamp as Spark gives it: of this machine's zone, without saying so."""
    return moment.astimezone(UTC)
