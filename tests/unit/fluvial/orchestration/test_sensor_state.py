"""What the sensor on new offsets decides and remembers."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from fluvial.orchestration.sensors.sensor_state import RETRY_SECONDS_MAX, Cursor, Decision, Standing, decide

TABLE = "history.orders"


def tick(
    cursor: Cursor, position: Mapping[int, int], ends: Mapping[int, int], *, now: float, lag_min: int = 1
) -> Decision:
    standing = Standing(position=position, ends=ends)
    decision = decide(cursor, {TABLE: standing}, now=now, lag_min=lag_min)
    # What is remembered goes through the text that Dagster keeps.
    assert Cursor.of(decision.cursor.as_text()) == decision.cursor
    return decision


def test_a_table_is_due_once_the_log_has_moved_on() -> None:
    assert tick(Cursor(), {0: 5}, {0: 5}, now=0).due == ()
    assert tick(Cursor(), {0: 5}, {0: 6}, now=0).due == (TABLE,)
    assert tick(Cursor(), {}, {0: 6}, now=0).due == (TABLE,)
    assert tick(Cursor(), {0: 5}, {0: 5, 1: 1}, now=0).due == (TABLE,)


def test_a_run_that_brought_the_table_on_is_followed_by_the_next_at_once() -> None:
    first = tick(Cursor(), {0: 5}, {0: 6}, now=0)
    second = tick(first.cursor, {0: 6}, {0: 9}, now=1)
    assert second.due == (TABLE,)
    assert second.cursor.runs == 2


def test_a_table_that_runs_do_not_bring_on_is_tried_later_and_later() -> None:
    cursor, asked_at, now = Cursor(), [], 0.0
    while now < 3_000:
        # New records come all the time, and do not shorten the wait.
        decision = tick(cursor, {0: 5}, {0: 6 + int(now)}, now=now)
        if decision.due:
            asked_at.append(now)
        else:
            assert "did not advance it" in decision.reasons[0]
        cursor, now = decision.cursor, now + 5
    waits = [later - earlier for earlier, later in pairwise(asked_at)]
    assert waits == sorted(waits)
    assert waits[0] == 10
    assert max(waits) == RETRY_SECONDS_MAX


def test_a_table_that_came_on_after_failures_starts_afresh() -> None:
    cursor = Cursor()
    for now in (0.0, 20.0, 60.0):
        cursor = tick(cursor, {0: 5}, {0: 6}, now=now).cursor
    assert cursor.asked[TABLE].attempts == 3
    cursor = tick(cursor, {0: 6}, {0: 8}, now=61).cursor
    assert cursor.asked[TABLE].attempts == 1


def test_a_few_records_may_wait_for_more() -> None:
    waiting = tick(Cursor(), {0: 5}, {0: 14}, now=0, lag_min=10)
    assert waiting.due == ()
    assert waiting.reasons == ("history.orders: 9 new records, and 10 are waited for",)
    assert tick(waiting.cursor, {0: 5}, {0: 15}, now=1, lag_min=10).due == (TABLE,)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"asked": {"a": 3}}', '"12"'])
def test_a_cursor_of_someone_else_is_begun_again(text: str | None) -> None:
    assert Cursor.of(text) == Cursor()


def test_a_table_that_was_not_run_after_all_is_not_counted() -> None:
    decision = tick(Cursor(), {0: 5}, {0: 6}, now=0)
    assert decision.cursor.without([TABLE]).asked == {}
