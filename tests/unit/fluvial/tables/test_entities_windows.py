"""Windows of event time: what a declaration with them is, and what each mistake in one is answered with."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fluvial.tables import (
    DeclarationError,
    aggregate,
    as_of,
    count,
    hopping,
    interval_join,
    pipeline,
    session,
    tumbling,
)

ORDERS, VIEWS = "history.orders", "history.views"
HOURS = tumbling("ordered_at", "1 hour", watermark="10 minutes", lateness="2 hours")


def declared(**arguments: Any) -> Any:
    words: dict[str, Any] = {"name": "t", "inputs": [ORDERS], "key": "customer", "windows": {ORDERS: HOURS}}
    return pipeline(**(words | arguments))(lambda *frames: frames)


def test_the_start_of_a_window_is_the_last_column_of_the_key() -> None:
    mart = declared(inputs={ORDERS: "lower(customer)", "compacted.cities": None})
    assert mart.key == ("customer", "window_start")
    assert mart.paths == {ORDERS: ("lower(customer)", "window_start"), "compacted.cities": None}
    assert declared(key=()).key == ("window_start",)
    assert declared(key=()).paths == {ORDERS: ("window_start",)}


def test_sessions_are_of_a_key() -> None:
    mart = declared(windows={ORDERS: session("ordered_at", "30 minutes")})
    assert (mart.key, mart.paths) == (("customer",), {ORDERS: ("customer",)})


def test_an_aggregate_has_both_ends_of_a_window() -> None:
    mart = aggregate(ORDERS, name="t", by="customer", fields={"n": count()}, window=HOURS)
    assert mart.aggregation is not None
    assert mart.key == ("customer", "window_start")
    assert list(mart.aggregation.by) == ["customer", "window_start", "window_end"]
    assert mart.from_parts
    visits = aggregate(ORDERS, name="t", by="customer", fields={"n": count()}, window=session("ordered_at", "1 hour"))
    assert not visits.from_parts, "a row may join two sessions"


def test_windows_are_said_in_words() -> None:
    assert str(HOURS) == "tumbling ordered_at 1 hour, watermark 10 minutes, lateness 2 hours, changes"
    assert str(hopping("at", "90 minutes", "30 seconds")) == "hopping at 90 minutes every 30 seconds"
    assert HOURS.lateness == timedelta(hours=2)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: tumbling("at", "1 fortnight"), "size is '1 fortnight': write a duration such as"),
        (lambda: tumbling("at", "0 hours"), "size is '0 hours'"),
        (lambda: tumbling("at", 60), "size is 60"),
        (lambda: tumbling(" ", "1 hour"), "name a column, or write a line of SQL"),
        (lambda: session("at", "soon"), "gap is 'soon'"),
        (lambda: tumbling("at", "1 hour", watermark="late"), "watermark is 'late'"),
        (lambda: tumbling("at", "1 hour", lateness="1 hour"), "lateness counts from a watermark, and there is none"),
        (lambda: tumbling("at", "1 hour", emit="final"), 'emit="final" counts from a watermark, and there is none'),
        (lambda: tumbling("at", "1 hour", emit="once"), 'write emit="changes" or emit="final"'),
        (
            lambda: declared(
                inputs={ORDERS: "customer", VIEWS: None},
                windows={ORDERS: tumbling("at", "1 hour", watermark="1 hour", emit="final")},
            ),
            "history.views may change, and with it windows that are final: pin it",
        ),
        (lambda: hopping("at", "1 hour", "2 hours"), "leaves out the rows in between"),
        (lambda: hopping("at", "1 week", "1 second"), "a row would lie in 604,800 windows"),
        (lambda: declared(windows={VIEWS: HOURS}), "has windows over history.views, which is none of its inputs"),
        (lambda: declared(windows={ORDERS: "1 hour"}), 'write them as in tumbling("ordered_at", "1 hour")'),
        (lambda: declared(key="window_start"), "which windows add to it of themselves: leave it out"),
        (lambda: declared(inputs={ORDERS: None, VIEWS: "customer"}), "has windows and is read whole"),
        (lambda: declared(inputs=[ORDERS, VIEWS]), "history.views leads to no window"),
        (lambda: declared(key=(), windows={ORDERS: session("at", "1 hour")}), "a session is one of a key"),
        (
            lambda: declared(inputs=[ORDERS, VIEWS], windows={ORDERS: HOURS, VIEWS: tumbling("at", "1 day")}),
            "must be alike in kind, size and emit",
        ),
        (
            lambda: declared(inputs=["state.orders"], windows={"state.orders": HOURS}),
            "the rows of state.orders are in no order of arrival",
        ),
        (
            lambda: aggregate(ORDERS, name="t", by="window_end", fields={"n": count()}, window=HOURS),
            "two columns named window_end",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_line(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def paid(**arguments: Any) -> Any:
    words: dict[str, Any] = {
        "name": "paid", "on": "order_id", "times": ("ordered_at", "paid_at"), "within": ("-5 minutes", "1 hour"),
    }  # fmt: skip
    return interval_join(ORDERS, "history.payments", **(words | arguments))


def at_home(**arguments: Any) -> Any:
    words: dict[str, Any] = {"name": "at_home", "on": {"customer": "id"}, "time": "ordered_at"}
    return as_of(ORDERS, "state.customers", **(words | arguments))


def test_a_join_within_an_interval_is_by_a_period_that_both_lead_to() -> None:
    mart = paid(on={"order_id": "order"})
    assert mart.key == ("order_id", "window_start")
    assert mart.paths == {ORDERS: ("order_id", "window_start"), "history.payments": ("order", "window_start")}
    left, right = mart.windows.values()
    assert (left.size, left.reach) == (timedelta(minutes=65), None)
    assert right.reach == (timedelta(minutes=-5), timedelta(hours=1))
    assert right.span == (timedelta(minutes=-5), timedelta(minutes=125))
    assert paid(within=("0 minutes", "0 minutes")).windows[ORDERS].size == timedelta(minutes=1)


def test_versions_lead_to_their_entity_alone() -> None:
    mart = at_home()
    assert mart.key == ("customer", "window_start")
    assert mart.paths == {ORDERS: ("customer", "window_start"), "state.customers": ("id",)}
    assert mart.validity["state.customers"].until == "valid_to"
    assert at_home(period="1 hour").windows[ORDERS].size == timedelta(hours=1)


def test_what_decides_the_rows_of_a_join_is_its_version() -> None:
    different = [paid(), paid(within=("0 minutes", "1 hour")), paid(how="left"), paid(select=["orders.amount"]),
                 paid(where="amount > 1"), at_home(), at_home(how="inner"), at_home(valid=("a", "b"))]  # fmt: skip
    assert len({each.version for each in different}) == len(different)
    assert paid().version == paid().version


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: paid(on=[]), "on names no column"),
        (lambda: paid(on="_key"), "starts with an underscore"),
        (lambda: paid(how="full"), 'write "inner" or "left"'),
        (lambda: paid(times="at"), "name one for each"),
        (lambda: paid(within=("1 hour", "5 minutes")), "within ends before it begins"),
        (lambda: paid(within="1 hour"), "at least and at most"),
        (lambda: paid(within=("0 minutes", "soon")), "within is 'soon'"),
        (lambda: paid(where=" "), "where is ' '"),
        (
            lambda: interval_join(ORDERS, ORDERS, name="t", on="a", times=("b", "b"), within=("0 days", "1 day")),
            "itself",
        ),
        (lambda: at_home(period="0 days"), "size is '0 days'"),
        (lambda: at_home(valid="valid_from"), "name two columns"),
        (lambda: at_home(time=""), "name a column"),
    ],
)
def test_a_mistake_in_a_join_is_answered_in_one_line(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
