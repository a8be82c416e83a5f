"""Streaming queries of the user's: run over what has come, stopped anywhere, refused where they do not fit."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import killed_stream
import pandas as pd
import pytest
from killed_driver import end_of
from killed_stream import query_of
from pyspark.sql import functions as sql

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.tables import DeclarationError, Pipeline, streaming
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.tables.inspect.verify import verify
from fluvial.tables.refresh import stream_run
from fluvial.tables.refresh.update_sink import UpdateSink

pytestmark = pytest.mark.spark

VIEWS = "history.views"


def per_minute(views: Any) -> Any:
    """The views of each minute that is over by the watermark."""
    windows = views.withWatermark("at", "10 seconds").groupBy(sql.window("at", "1 minute"), "page")
    return windows.count().selectExpr("window.start AS minute", "page", "count AS views")


def declared(version: str = "1", mode: Any = "append", transform: Any = per_minute) -> Pipeline:
    return cast("Pipeline", streaming(name="per_minute", inputs=[VIEWS], output_mode=mode, version=version)(transform))


@pytest.fixture
def inputs(spark: Any, warehouse_settings: Settings) -> Settings:
    add(spark, warehouse_settings, ("10:00:05", "a"), ("10:00:10", "a"), ("10:01:15", "b"))
    return warehouse_settings


def add(spark: Any, settings: Settings, *views: tuple[str, str]) -> None:
    rows = spark.createDataFrame(views, "time string, page string")
    rows = rows.selectExpr("CAST(concat('2025-03-01 ', time) AS TIMESTAMP) AS at", "page").coalesce(1)
    rows.write.format("delta").mode("append").save(f"{settings.warehouse}/history/views")


def found(spark: Any, settings: Settings) -> list[tuple[str, str, int]]:
    table = spark.read.format("delta").load(f"{settings.warehouse}/marts/per_minute")
    rows = table.selectExpr("date_format(minute, 'HH:mm')", "page", "views").collect()
    return sorted(tuple(row) for row in rows)


def test_a_query_goes_on_where_it_stopped(spark: Any, inputs: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    query = declared()
    log = TableLog(spark, f"{inputs.warehouse}/marts/per_minute")
    materialize(query, inputs, spark)
    assert found(spark, inputs) == [("10:00", "a", 2)], "the minute of the last view is open"
    assert materialize(query, inputs, spark).skipped

    add(spark, inputs, ("10:01:30", "b"), ("10:03:00", "a"), ("09:00:00", "late"))
    assert as_lines(explain(query, inputs, spark))[:2] == [
        "marts.per_minute: a streaming query over what has come",
        "  reads history.views version 1: the rows that came and went, changes since version 0",
    ]
    # Stopped after the query's own commits, and before the one that says how far it is.
    with monkeypatch.context() as patch:
        patch.setattr(stream_run.StreamRun, "_committed", lambda *_given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            materialize(query, inputs, spark)
    assert spark.streams.active == []
    expected = [("10:00", "a", 2), ("10:01", "b", 2)]
    assert found(spark, inputs) == expected
    result = materialize(query, inputs, spark)
    assert (result.skipped, result.inputs) == (False, {VIEWS: 1})
    assert found(spark, inputs) == expected, "nothing twice"
    version = log.newest_version()

    with pytest.raises(
        DeclarationError, match=r"checkpoint was made by other code \(1, now 2\).*rebuild marts.per_minute"
    ):
        materialize(declared("2"), inputs, spark)
    other = declared("1", transform=lambda views: per_minute(views.selectExpr("at", "1 AS page")))
    add(spark, inputs, ("10:05:00", "a"))
    with pytest.raises(DeclarationError, match=r"does not fit its checkpoint.*rebuild marts.per_minute"):
        materialize(other, inputs, spark)
    assert log.newest_version() == version

    shutil.rmtree(Path(inputs.warehouse) / stream_run.CHECKPOINTS)
    with pytest.raises(TableError, match=r"its checkpoint .* is gone: `fluvial table rebuild marts.per_minute`"):
        materialize(query, inputs, spark)
    rebuild(declared("2"), inputs, spark)
    assert found(spark, inputs) == [("09:00", "late", 1), *expected, ("10:03", "a", 1)], "all in one batch, none late"
    assert materialize(declared("2"), inputs, spark).skipped
    with pytest.raises(TableError, match="made by a streaming query"):
        verify(declared("2"), inputs, spark, schemas=cast("Any", None))


class Latest:
    """Says how many views a page has had, and when it has had none for a minute that it is idle."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:
        came = pd.concat([*rows])
        before = self._seen.get()
        now = (0 if before is None else before[0]) + len(came)
        self._seen.update((now,))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(int(came["at"].max().timestamp() * 1000) + 60_000)
        yield pd.DataFrame({"page": [key[0]], "views": [now], "idle": [False]})

    def handleExpiredTimer(self, key: Any, **_timing: Any) -> Iterator[Any]:
        yield pd.DataFrame({"page": [key[0]], "views": [self._seen.get()[0]], "idle": [True]})

    def close(self) -> None:
        pass


def latest(views: Any) -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    processor = type("Views", (Latest, StatefulProcessor), {})()
    grouped = views.withWatermark("at", "0 seconds").groupBy("page")
    return grouped.transformWithStateInPandas(processor, "page string, views long, idle boolean", "Update", "EventTime")


@pytest.mark.rota
def test_state_and_timers_of_python_update_rows_by_their_key(spark: Any, inputs: Settings) -> None:
    query = streaming(name="seen", inputs=[VIEWS], output_mode="update", key="page", version="1")(latest)

    def run() -> list[Any]:
        materialize(query, inputs, spark)
        table = spark.read.format("delta").load(f"{inputs.warehouse}/marts/seen")
        return sorted(map(tuple, table.select("page", "views", "idle").collect()))

    assert run() == [("a", 2, True), ("b", 1, False)], "the watermark has passed the timer of one page"
    add(spark, inputs, ("10:01:20", "a"))
    assert run() == [("a", 3, False), ("b", 1, False)]
    add(spark, inputs, ("10:09:00", "c"))
    assert run() == [("a", 3, True), ("b", 1, True), ("c", 1, False)]


STEPS = [("update", "sink committed"), ("update", "rows made"), ("update", "noted"), ("append", "sink committed")]


@pytest.mark.rota
def test_an_error_of_a_processor_is_told_in_its_own_words(spark: Any, inputs: Settings) -> None:
    class Failing(Latest):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:
            raise ValueError(f"no room for {key[0]}")

    def failing(views: Any) -> Any:
        from pyspark.sql.streaming import StatefulProcessor

        processor = type("Views", (Failing, StatefulProcessor), {})()
        return views.groupBy("page").transformWithStateInPandas(processor, "page string", "Update", "None")

    query = streaming(name="seen", inputs=[VIEWS], output_mode="update", key="page", version="1")(failing)
    with pytest.raises(TableError, match=r"marts\.seen: the query stopped: ValueError: no room for (a|b)$"):
        materialize(query, inputs, spark)


@pytest.mark.rota
@pytest.mark.parametrize(("mode", "step"), [*STEPS, ("complete", "sink committed")])
def test_a_killed_driver_counts_each_event_once(spark: Any, inputs: Settings, mode: str, step: str) -> None:
    query, sent = query_of(mode), {"a": 2, "b": 1}
    materialize(query, inputs, spark)
    table = Path(inputs.warehouse, "marts", "killed_stream")
    for minute in range(2, 10):
        add(spark, inputs, (f"10:0{minute}:00", "a"), (f"10:0{minute}:10", f"page {minute}"))
        sent |= {"a": sent["a"] + 1, f"page {minute}": 1}
        before = len([*table.glob("_delta_log/*.json")])
        assert end_of(killed_stream.__file__, {"step": step, "mode": mode}, inputs) == -signal.SIGKILL
        (checkpoint,) = Path(inputs.warehouse, stream_run.CHECKPOINTS, killed_stream.TABLE).glob("*")
        planned, noted = (
            {each.name for each in (checkpoint / kind).iterdir() if each.name.isdecimal()}
            for kind in ("offsets", "commits")
        )
        is_in_between = len(planned) == len(noted) + (step != "noted")
        assert (len([*table.glob("_delta_log/*.json")]) > before) == (step != "rows made")
        add(spark, inputs, ("10:20:00", "a"))
        sent["a"] += 1
        materialize(query, inputs, spark)
        rows = spark.read.format("delta").load(str(table)).groupBy("page").sum("views").collect()
        assert {row[0]: row[1] for row in rows} == sent
        if is_in_between:
            break
        assert mode != "update", "only of Delta's own sink the kill may come after the checkpoint's note"
    else:
        pytest.fail("no kill came between the table's commit and the checkpoint's")
    assert spark.read.format("delta").load(str(table)).count() >= len(sent)


def test_a_batch_that_is_given_again_changes_nothing(spark: Any, inputs: Settings) -> None:
    query = streaming(name="pages", inputs=[VIEWS], output_mode="update", key=["page"], version="1")(
        lambda views: views.groupBy("page").count().toDF("page", "views")
    )
    materialize(query, inputs, spark)
    path = f"{inputs.warehouse}/marts/pages"
    log = TableLog(spark, path)
    version = log.newest_version()
    (checkpoint,) = Path(inputs.warehouse, stream_run.CHECKPOINTS, "marts.pages").glob("*")
    sink = UpdateSink(declaration=query, path=path, checkpoint=checkpoint.name)
    other = spark.createDataFrame([("a", 9), ("z", 9)], "page string, views long")
    sink.put(other, 0)
    assert log.newest_version() == version
    # Another batch may have several rows of a key, and all of them take the place of the old one.
    sink.put(other.unionAll(spark.createDataFrame([("a", 8)], other.schema)), 1)
    rows = spark.read.format("delta").load(path).collect()
    assert sorted(map(tuple, rows)) == [("a", 8), ("a", 9), ("b", 1), ("z", 9)]


def test_an_update_query_is_refused_where_it_does_not_fit(spark: Any, inputs: Settings) -> None:
    def declared_as(transform: Any, key: str = "page") -> Any:
        return streaming(name="pages", inputs=[VIEWS], output_mode="update", key=key, version="1")(transform)

    def counts(views: Any) -> Any:
        return views.groupBy("page").count()

    with pytest.raises(DeclarationError, match="returned no column user, which its key names: page, count"):
        materialize(declared_as(counts, key="user"), inputs, spark)
    materialize(declared_as(counts), inputs, spark)
    add(spark, inputs, ("10:05:00", "a"))
    with pytest.raises(DeclarationError, match=r"with another key or output mode: `fluvial table rebuild marts.pages`"):
        materialize(declared_as(counts, key="count"), inputs, spark)
    with pytest.raises(TableError, match="returns other columns than the table has: `fluvial table rebuild"):
        materialize(declared_as(lambda views: counts(views).selectExpr("page", "count AS n")), inputs, spark)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"output_mode": "upsert"}, """output_mode is 'upsert': write "append", "complete", or "update" with a key"""),
        ({"output_mode": "update"}, 'output_mode="update" needs key="…"'),
        ({"output_mode": "update", "key": "a b"}, "key 'a b' is no column name"),
        ({"output_mode": "update", "key": ["a", "a"]}, "names a column twice"),
        ({"key": "page"}, 'output_mode="append" replaces no rows by a key'),
        ({"inputs": ["state.views"]}, "input 'state.views' is no history"),
        ({"inputs": []}, "needs a list of input tables"),
        ({"name": "a b"}, "'a b' is no table name"),
    ],
)
def test_a_declaration_is_checked_as_it_is_made(given: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError, match=r"streaming\(") as refused:
        streaming(**{"name": "views", "inputs": [VIEWS], **given})
    assert why in str(refused.value)


def test_what_is_no_stream_is_refused(spark: Any, inputs: Settings) -> None:
    fixed = streaming(name="fixed", inputs=[VIEWS], version="1")(lambda views: views.sparkSession.range(3))
    with pytest.raises(DeclarationError, match="returned a frame that is no stream"):
        materialize(fixed, inputs, spark)
