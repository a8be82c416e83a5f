"""Windows of event time: where they lie, which rows are late for them, and what a refresh computes again."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from pyspark.sql import functions as sql

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, newest_made
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import (
    DeclarationError,
    Pipeline,
    TimeWindows,
    aggregate,
    count,
    hopping,
    max_,
    pipeline,
    session,
    sum_,
    tumbling,
)
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh import key_plan, part_refresh
from fluvial.tables.refresh.transforms import materialize_pipeline

pytestmark = pytest.mark.spark

VIEWS = "history.views"
COLUMNS = "_partition int, _offset bigint, visitor string, seconds int, at timestamp"
NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def tables_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have changes be cheaper, as a test's tables are too small for that."""
    for module in (key_plan, part_refresh):
        monkeypatch.setattr(module, "why_full", lambda _work: None)


def at(text: str) -> datetime:
    hour, minute = text.split(":")
    return NOON + timedelta(hours=int(hour) - 12, minutes=int(minute))


class Views:
    """The history, whose offsets go on, and what was made of it."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self.spark, self.settings = spark, settings
        self.said: list[str] = []
        self.result: RunResult | None = None
        self._next: dict[int, int] = {}

    def path(self, table: str) -> str:
        return f"{self.settings.warehouse}/{table.replace('.', '/')}"

    def frame(self, table: str) -> Any:
        return self.spark.read.format("delta").load(self.path(table))

    def add(self, *views: tuple[str, str, int], partition: int = 0) -> None:
        """Append views (visitor, time, seconds) to a partition in one commit."""
        rows = []
        for visitor, time, seconds in views:
            offset = self._next.get(partition, 0)
            self._next[partition] = offset + 1
            rows.append((partition, offset, visitor, seconds, at(time)))
        frame = self.spark.createDataFrame(rows, COLUMNS).coalesce(1)
        writer = frame.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true")
        writer.save(self.path(VIEWS))

    def change(self, statement: str) -> None:
        self.spark.sql(statement.format(views=f"delta.`{self.path(VIEWS)}`"))

    def refresh(self, mart: Pipeline) -> MartStamp:
        self.result = materialize(mart, self.settings, self.spark, progress=self.said.append)
        made = newest_made(TableLog(self.spark, self.path(mart.table)))
        assert made is not None
        return made.stamp

    def hours(self, mart: Pipeline) -> dict[tuple[str, str], int]:
        """The number of views by visitor and beginning of the window."""
        return {(row.visitor, _hour(row.window_start)): row.n for row in self.frame(mart.table).collect()}

    def late(self) -> list[tuple[str, str, str]]:
        """Of each late row its time, the beginning of its window and the watermark."""
        rows = self.frame("late.views_by_hour").orderBy("_partition", "_offset", "window_start").collect()
        return [(_hour(row.time), _hour(row.window_start), _hour(row.watermark)) for row in rows]

    def is_exact(self, mart: Pipeline) -> bool:
        return verify(mart, self.settings, self.spark, schemas=cast("Any", None)).is_exact


def _hour(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%H:%M")


@pytest.fixture
def views(spark: Any, warehouse_settings: Settings) -> Views:
    return Views(spark, warehouse_settings)


def by_hour(window: TimeWindows) -> Pipeline:
    return aggregate(VIEWS, name="views_by_hour", by="visitor", fields={"n": count()}, window=window)


def test_windows_lie_where_those_of_spark_do(views: Views) -> None:
    times = ["10:00", "10:05", "10:10", "10:29", "10:30", "10:31", "11:00", "11:00", "11:40", "12:10", "12:41"]
    views.add(*((visitor, time, 1) for visitor in "ab" for time in times if visitor == "a" or time > "10:20"))
    rows = views.frame(VIEWS)
    for ours, theirs in (
        (tumbling("at", "30 minutes"), sql.window("at", "30 minutes")),
        (hopping("at", "1 hour", "20 minutes"), sql.window("at", "1 hour", "20 minutes")),
        (hopping("at", "50 minutes", "20 minutes"), sql.window("at", "50 minutes", "20 minutes")),
        (session("at", "30 minutes"), sql.session_window("at", "30 minutes")),
        (session("at", "31 minutes"), sql.session_window("at", "31 minutes")),
    ):
        expected = rows.groupBy("visitor", theirs.alias("w")).count().select("visitor", "w.start", "w.end", "count")
        found = ours.laid_over(rows, ["visitor"]).groupBy("visitor", "window_start", "window_end").count()
        assert sorted(found.collect()) == sorted(expected.collect()), str(ours)


@pytest.mark.rota
def test_a_late_row_opens_its_window_again_until_its_lateness_is_over(views: Views) -> None:
    mart = by_hour(tumbling("at", "1 hour", watermark="10 minutes", lateness="1 hour"))
    views.add(("ann", "10:05", 1), ("bob", "10:50", 1), ("ann", "11:55", 1))
    assert views.refresh(mart).refresh is not None
    assert views.late() == []

    # The watermark is at 11:45: the hour from 10 takes rows until it is at 12:00.
    views.add(("ann", "10:06", 1))
    stamp = views.refresh(mart)
    assert stamp.refresh is not None
    assert (stamp.refresh.road, stamp.refresh.keys) == ("parts", 1)
    assert views.hours(mart) == {("ann", "10:00"): 2, ("bob", "10:00"): 1, ("ann", "11:00"): 1}

    # Of one batch, in the order of the log: the first is in time, as the row that moves the watermark comes after it.
    views.add(("bob", "10:07", 1), ("bob", "12:10", 1), ("bob", "10:08", 1), ("bob", "11:59", 1))
    stamp = views.refresh(mart)
    assert views.hours(mart) == {
        ("ann", "10:00"): 2, ("bob", "10:00"): 2, ("ann", "11:00"): 1, ("bob", "11:00"): 1, ("bob", "12:00"): 1,
    }  # fmt: skip
    assert views.late() == [("10:08", "10:00", "12:00")]
    assert stamp.watermarks is not None
    assert stamp.watermarks.rows == 1
    assert views.result is not None
    assert views.result.late_rows == 1
    assert '"seconds":1' in views.frame("late.views_by_hour").collect()[0]["row"]
    assert any("1 more rows came too late" in line and "late.views_by_hour" in line for line in views.said)

    # Another partition of the topic has a watermark of its own.
    views.add(("cid", "10:09", 1), partition=1)
    views.refresh(mart)
    assert views.hours(mart)["cid", "10:00"] == 1
    assert views.is_exact(mart)
    assert views.spark.sql("SELECT count(*) FROM late.views_by_hour").collect()[0][0] == 1


@pytest.mark.rota
def test_which_rows_are_late_does_not_depend_on_when_a_table_is_refreshed(views: Views) -> None:
    mart = by_hour(hopping("at", "1 hour", "30 minutes", watermark="0 minutes"))
    for time in ("10:05", "12:31", "10:06", "12:02", "13:15", "12:20", "12:40"):
        views.add(("ann", time, 1))
        views.refresh(mart)
    step_by_step = views.hours(mart), views.late()
    assert step_by_step[1] == [
        ("10:06", "09:30", "12:31"), ("10:06", "10:00", "12:31"), ("12:02", "11:30", "12:31"),
        ("12:20", "11:30", "13:15"), ("12:20", "12:00", "13:15"), ("12:40", "12:00", "13:15"),
    ]  # fmt: skip
    assert step_by_step[0]["ann", "12:00"] == 2, "of the row from 12:02 one window had ended, and the other had not"
    materialize(mart, views.settings, views.spark, progress=views.said.append)
    materialize_pipeline(mart, Warehouse.at(views.settings.warehouse), views.spark, views.said.append, rebuild=True)
    assert (views.hours(mart), views.late()) == step_by_step


@pytest.mark.rota
def test_rows_that_went_are_judged_no_more(views: Views) -> None:
    mart = by_hour(tumbling("at", "1 hour", watermark="0 minutes"))
    views.add(("ann", "10:05", 1), ("bob", "12:00", 1), ("ann", "10:06", 1), ("cid", "10:07", 1))
    views.refresh(mart)
    assert len(views.late()) == 2
    # A correction of what moved no watermark changes one key.
    views.change("UPDATE {views} SET seconds = 5 WHERE visitor = 'ann' AND _offset = 0")
    stamp = views.refresh(mart)
    assert stamp.refresh is not None
    assert stamp.refresh.road == "parts"
    # An erased row is erased from the late ones.
    views.change("DELETE FROM {views} WHERE visitor = 'cid'")
    views.refresh(mart)
    assert views.late() == [("10:06", "10:00", "12:00")]
    # What had moved the watermark is gone: nothing is late.
    views.change("DELETE FROM {views} WHERE visitor = 'bob'")
    stamp = views.refresh(mart)
    assert stamp.refresh is not None
    assert stamp.refresh.reason == "rows of its inputs went, and with them other rows are late"
    assert (views.late(), views.hours(mart)) == ([], {("ann", "10:00"): 2})
    assert views.is_exact(mart)


@pytest.mark.rota
def test_verify_finds_a_late_row_that_is_not_kept(views: Views) -> None:
    mart = by_hour(tumbling("at", "1 hour", watermark="0 minutes"))
    views.add(("ann", "10:05", 1), ("bob", "12:00", 1), ("ann", "10:06", 1))
    views.refresh(mart)
    views.change(f"DELETE FROM delta.`{views.path('late.views_by_hour')}`")
    assert views.is_exact(mart), "the version of the stamp is as it was"
    # The next refresh does not go on from what somebody else has changed.
    views.add(("bob", "12:01", 1))
    views.refresh(mart)
    assert views.late() == [("10:06", "10:00", "12:00")]
    assert views.is_exact(mart)


@pytest.mark.rota
def test_sessions_grow_together_and_apart(views: Views) -> None:
    visits = pipeline(
        name="visits",
        inputs={VIEWS: "upper(visitor)"},
        key="visitor",
        version="1",
        windows={VIEWS: session("at", "30 minutes", watermark="1 hour")},
    )(
        lambda rows: rows.groupBy(sql.upper("visitor").alias("visitor"), "window_start", "window_end").agg(
            sql.count("*").alias("n")
        )
    )
    views.add(("ann", "10:00", 1), ("ann", "10:50", 1), ("bob", "10:00", 1))
    views.refresh(visits)
    assert views.hours(visits) == {("ANN", "10:00"): 1, ("ANN", "10:50"): 1, ("BOB", "10:00"): 1}
    views.add(("Ann", "10:25", 1))
    stamp = views.refresh(visits)
    assert stamp.refresh is not None
    assert (stamp.refresh.road, stamp.refresh.keys) == ("keys", 1)
    assert views.hours(visits) == {("ANN", "10:00"): 3, ("BOB", "10:00"): 1}
    views.change("DELETE FROM {views} WHERE visitor = 'Ann'")
    views.refresh(visits)
    assert views.hours(visits) == {("ANN", "10:00"): 1, ("ANN", "10:50"): 1, ("BOB", "10:00"): 1}
    assert views.is_exact(visits)


@pytest.mark.rota
def test_an_aggregate_of_sessions_is_made_by_keys(views: Views) -> None:
    fields = {"n": count(), "longest": max_("seconds"), "all": sum_("seconds")}
    visits = aggregate(VIEWS, name="visits", by="visitor", fields=fields, window=session("at", "10 minutes"))
    views.add(("ann", "10:00", 3), ("ann", "10:07", 5), ("bob", "10:00", 1))
    views.refresh(visits)
    views.add(("ann", "10:15", 2))
    stamp = views.refresh(visits)
    assert stamp.refresh is not None
    assert (stamp.refresh.road, stamp.refresh.keys) == ("keys", 1)
    (row,) = views.frame("marts.visits").where("visitor = 'ann'").collect()
    assert (row.n, row.longest, row["all"], _hour(row.window_end)) == (3, 5, 10, "10:25")
    assert views.is_exact(visits)


def test_all_rows_of_a_window_need_no_other_key(views: Views) -> None:
    total = aggregate(VIEWS, name="total", fields={"n": count()}, window=tumbling("at", "1 hour"))
    views.add(("ann", "10:00", 3), ("bob", "10:07", 5), ("bob", "11:00", 1))
    views.refresh(total)
    views.add(("ann", "10:15", 2))
    views.refresh(total)
    assert {_hour(row.window_start): row.n for row in views.frame("marts.total").collect()} == {"10:00": 3, "11:00": 1}
    assert views.is_exact(total)


def test_two_inputs_meet_in_their_windows(views: Views) -> None:
    views.add(("ann", "10:00", 3), ("bob", "10:07", 5), ("bob", "11:00", 1))
    orders = views.spark.createDataFrame([("ann", at("10:30")), ("bob", at("11:59"))], "who string, time timestamp")
    orders.write.format("delta").save(views.path("history.orders"))
    both = pipeline(
        name="both",
        inputs={VIEWS: "visitor", "history.orders": "who"},
        key="visitor",
        version="1",
        windows={VIEWS: tumbling("at", "1 hour"), "history.orders": tumbling("time", "1 hour")},
    )(
        lambda views, orders: (
            views.groupBy("visitor", "window_start")
            .agg(sql.count("*").alias("n"))
            .join(
                orders.groupBy(sql.col("who").alias("visitor"), "window_start").agg(sql.count("*").alias("orders")),
                ["visitor", "window_start"],
                "left",
            )
        )
    )
    views.refresh(both)
    late = views.spark.createDataFrame([("bob", at("10:59"))], "who string, time timestamp")
    late.write.format("delta").mode("append").save(views.path("history.orders"))
    stamp = views.refresh(both)
    assert stamp.refresh is not None
    assert (stamp.refresh.road, stamp.refresh.keys) == ("keys", 1)
    rows = {(row.visitor, _hour(row.window_start)): row.orders for row in views.frame("marts.both").collect()}
    assert rows == {("ann", "10:00"): 1, ("bob", "10:00"): 1, ("bob", "11:00"): 1}
    assert views.is_exact(both)


def test_explain_says_where_the_watermarks_are(views: Views) -> None:
    mart = by_hour(tumbling("at", "1 hour", watermark="10 minutes"))
    views.add(("ann", "10:05", 1), ("bob", "12:00", 1), ("ann", "10:06", 1))
    views.add(("cid", "11:00", 1), partition=1)
    explained = "\n".join(as_lines(explain(mart, views.settings, views.spark)))
    assert "the table is new" in explained
    assert TableLog(views.spark, views.path("late.views_by_hour")).newest_version() is None, "it writes nothing"
    views.refresh(mart)
    explained = "\n".join(as_lines(explain(mart, views.settings, views.spark)))
    assert "watermark of history.views: 2025-03-01 11:50:00 UTC; partition 1 is behind, at 2025-03-01 10:50:00 UTC" in (
        explained
    )
    assert "1 rows came too late for a window: late.views_by_hour" in explained


REFUSED: Sequence[tuple[str, str]] = (
    ("seen_at", "the time 'seen_at' of its windows is not in history.views"),
    ("seconds", "the time 'seconds' of its windows is int in history.views, not a timestamp: cast it"),
    ("CAST(at AS TIMESTAMP_NTZ)", "is timestamp_ntz in history.views, not a timestamp: cast it"),
)


def test_a_time_that_is_none_is_refused_in_one_line(views: Views) -> None:
    views.add(("ann", "10:05", 1))
    for time, words in REFUSED:
        with pytest.raises(DeclarationError) as refused:
            materialize(by_hour(tumbling(time, "1 hour", watermark="0 minutes")), views.settings, views.spark)
        assert words in str(refused.value), time
        assert "\n" not in str(refused.value), time
    views.spark.sql("SELECT 'a' AS visitor, now() AS at, 1 AS window_start").write.format("delta").save(
        views.path("history.named")
    )
    named = aggregate("history.named", name="n", by="visitor", fields={"n": count()}, window=tumbling("at", "1 hour"))
    with pytest.raises(DeclarationError, match="has a column window_start already"):
        materialize(named, views.settings, views.spark)
    unordered = aggregate(
        "history.named2", name="n", by="visitor", fields={"n": count()},
        window=tumbling("at", "1 hour", watermark="1 hour"),
    )  # fmt: skip
    views.spark.sql("SELECT 'a' AS visitor, now() AS at").write.format("delta").save(views.path("history.named2"))
    with pytest.raises(DeclarationError, match="nobody knows in which order its rows came"):
        materialize(unordered, views.settings, views.spark)


@pytest.mark.rota
def test_a_final_window_is_there_once_and_stays_as_it_is(views: Views) -> None:
    mart = by_hour(tumbling("at", "1 hour", watermark="10 minutes", lateness="20 minutes", emit="final"))
    views.add(("ann", "10:05", 1), ("bob", "10:50", 1), ("ann", "11:29", 1))
    views.refresh(mart)
    assert views.hours(mart) == {}
    # A row of the open hour changes nothing yet; 20 and 10 minutes after its end the hour is there.
    views.add(("ann", "10:59", 1))
    views.refresh(mart)
    assert views.hours(mart) == {}
    views.add(("cid", "11:30", 1))
    stamp = views.refresh(mart)
    assert stamp.refresh is not None
    assert (stamp.refresh.road, stamp.refresh.keys) == ("keys", 2)
    assert views.hours(mart) == {("ann", "10:00"): 2, ("bob", "10:00"): 1}
    assert "windows that end by 2025-03-01 11:00:00 UTC are final" in "\n".join(
        as_lines(explain(mart, views.settings, views.spark))
    )

    # The first row of another partition is late for it, and holds the next hours back.
    views.add(("dan", "10:30", 1), partition=1)
    views.add(("cid", "15:00", 1))
    views.refresh(mart)
    assert views.hours(mart) == {("ann", "10:00"): 2, ("bob", "10:00"): 1}
    assert views.late() == [("10:30", "10:00", "11:20")]
    views.add(("dan", "12:31", 1), partition=1)
    views.refresh(mart)
    assert views.hours(mart) == {
        ("ann", "10:00"): 2, ("bob", "10:00"): 1, ("ann", "11:00"): 1, ("cid", "11:00"): 1,
    }  # fmt: skip
    assert views.is_exact(mart)
    # A correction of the history is no late row.
    views.change("DELETE FROM {views} WHERE visitor = 'ann'")
    views.refresh(mart)
    assert views.hours(mart) == {("bob", "10:00"): 1, ("cid", "11:00"): 1}
    assert views.late() == [("10:30", "10:00", "11:20")]
    assert views.is_exact(mart)


@pytest.mark.rota
def test_a_final_session_is_joined_by_no_later_row(views: Views) -> None:
    window = session("at", "30 minutes", watermark="0 minutes", emit="final")
    mart = aggregate(VIEWS, name="visits", by="visitor", fields={"n": count()}, window=window)
    views.add(("ann", "10:00", 1), ("ann", "10:20", 1), ("bob", "11:19", 1))
    views.refresh(mart)
    # The session ends at 10:50; a row of 10:50 is not late when the watermark is at 11:19, and joins it.
    assert views.hours(mart) == {}
    views.add(("ann", "10:50", 1), ("bob", "11:50", 1), ("ann", "11:20", 1))
    views.refresh(mart)
    assert views.hours(mart) == {("ann", "10:00"): 3}, "the row of 11:20 is late"
    views.add(("bob", "12:20", 1))
    views.refresh(mart)
    assert views.hours(mart) == {("ann", "10:00"): 3, ("bob", "11:19"): 1}
    assert views.frame("late.visits").count() == 1
    assert views.is_exact(mart)
