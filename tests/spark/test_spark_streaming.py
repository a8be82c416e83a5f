"""Streaming queries of the user's: run over what has come, stopped anywhere, refused where they do not fit."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import functions as sql

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.tables import DeclarationError, Pipeline, streaming
from fluvial.tables.drive import stream_run
from fluvial.tables.drive.explain import as_lines, explain
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.drive.verify import verify

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


class Longest:
    """Keeps the latest time of a page, and says how many views it has had."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:
        import pandas as pd

        before = self._seen.get()
        now = (0 if before is None else before[0]) + sum(len(each) for each in rows)
        self._seen.update((now,))
        yield pd.DataFrame({"page": [key[0]], "views": [now]})

    def close(self) -> None:
        pass


@pytest.mark.rota
def test_state_of_python_is_kept_between_runs(spark: Any, inputs: Settings) -> None:
    def views(frame: Any) -> Any:
        from pyspark.sql.streaming import StatefulProcessor

        processor = type("Views", (Longest, StatefulProcessor), {})()
        grouped = frame.groupBy("page")
        return grouped.transformWithStateInPandas(processor, "page string, views long", "Append", "None")

    query = streaming(name="seen", inputs=[VIEWS], version="1")(views)
    materialize(query, inputs, spark)
    add(spark, inputs, ("10:02:00", "a"))
    materialize(query, inputs, spark)
    rows = spark.read.format("delta").load(f"{inputs.warehouse}/marts/seen").collect()
    assert sorted(map(tuple, rows)) == [("a", 2), ("a", 3), ("b", 1)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"output_mode": "update"}, 'a Delta table takes "append" and "complete"'),
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
