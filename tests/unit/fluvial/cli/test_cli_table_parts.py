"""What `fluvial table replay` makes of a range of tables, before Spark starts and after."""

import time

import pytest

from fluvial.cli.table.table_parts import _check_topics, _said, stretch_of
from fluvial.errors import FluvialError
from fluvial.spark.offset_times import Window
from fluvial.tables import Declaration, history, pipeline, state
from fluvial.tables.declare.folds import count
from fluvial.tables.plan.result import RunResult
from fluvial.tables.replay.stretch import Stretch


def test_offsets_are_ranges_with_both_ends_and_times_have_no_last_moment() -> None:
    assert stretch_of(None, None, []) is None
    found = stretch_of(None, None, ["orders:0=100-199", "orders:12=7", "pay.ments:0=0-0"])
    assert found == Stretch(offsets={"orders": {0: (100, 200), 12: (7, 8)}, "pay.ments": {0: (0, 1)}})
    hour = stretch_of("2025-01-01T10:00", "2025-01-01T12:00+01:00", [])
    assert hour == Stretch(window=Window(start_ms=1_735_725_600_000, end_ms=1_735_729_200_000))


def test_a_time_may_be_said_as_how_long_ago() -> None:
    found = stretch_of("90m", "30m", [])
    assert found is not None
    assert found.window is not None
    assert found.window.end_ms - found.window.start_ms in range(3_599_000, 3_601_000)
    assert found.window.end_ms < time.time_ns() // 1_000_000


def test_a_topic_that_no_table_reads_is_refused() -> None:
    orders = history("orders")
    mart = pipeline(name="spend", inputs=["history.orders"], key="customer", version="1")(lambda rows: rows)
    other = state("other", topic="customers", key="id", fields={"n": count()})
    declared: list[Declaration] = [orders, mart, other]
    for chosen in ([orders], [mart]):
        _check_topics(Stretch(offsets={"orders": {0: (0, 1)}}), chosen, declared)
    with pytest.raises(FluvialError, match="--offsets order: none of the named tables reads it; they read orders"):
        _check_topics(Stretch(offsets={"order": {0: (0, 1)}}), [mart], declared)
    with pytest.raises(FluvialError, match="--offsets customers: none of the named tables"):
        _check_topics(Stretch(offsets={"customers": {0: (0, 1)}}), [orders, mart], declared)


def test_a_line_says_what_was_made_again() -> None:
    done = RunResult(table="state.a", kind="state", skipped=False, version_before=3, version_after=4, rows=1_200)
    assert _said(done) == "state.a: version 4, 1,200 rows, 0.0 s"
    nothing = RunResult(table="state.a", kind="state", skipped=True, version_before=3, version_after=3)
    assert _said(nothing) == "state.a: nothing of that range is in it; version 3"
