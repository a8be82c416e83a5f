"""Aggregates: what a declaration is, and what each mistake in one is answered with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fluvial.tables import DeclarationError, aggregate, count, count_distinct, latest, max_, mean, state, sum_, top
from fluvial.tables.plan.refresh_cost import Work, why_full


def spend(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"name": "spend", "by": "customer", "fields": {"n": count(), "spent": sum_("amount")}}
    return aggregate("history.orders", **(arguments | changes))


def test_an_aggregate_is_a_pipeline_with_a_key() -> None:
    declared = spend(by={"customer": "customer", "day": "date(at)"})
    assert (declared.table, declared.kind, declared.inputs) == ("marts.spend", "pipeline", ("history.orders",))
    assert declared.key == ("customer", "day")
    assert declared.paths == {"history.orders": ("customer", "date(at)")}
    assert declared.transform is declared.aggregation


def test_what_decides_the_rows_is_its_version() -> None:
    different = [
        spend(),
        spend(by=["customer", "city"]),
        spend(where="amount > 3"),
        spend(approximate=True),
        spend(fields={"n": count(), "spent": sum_("amount + 1")}),
        spend(fields={"n": count("amount > 3"), "spent": sum_("amount")}),
        spend(fields={"t": top("amount", 2)}),
        spend(fields={"t": top("amount", 3)}),
    ]
    versions = [each.version for each in different]
    assert len({*versions}) == len(versions)
    assert spend().version == versions[0]


def test_it_says_of_which_fields_rows_are_read_again() -> None:
    fields = {"n": count(), "w": sum_("weight"), "m": mean("id"), "hi": max_("id"), "d": count_distinct("item")}
    exact, near = spend(fields=fields).aggregation, spend(fields=fields, approximate=True).aggregation
    assert exact.reads_again(["w"]) == (
        "w: the rows of a key from which a floating point number has gone",
        "hi: the rows of a key whose greatest value may have gone",
    )
    assert near.reads_again(["w"]) == ("hi: the rows of a key whose greatest value may have gone",)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: spend(by=[]), "needs at least one column to group by"),
        (lambda: spend(fields={}), "declares no field"),
        (lambda: spend(fields={"n": "count(*)"}), "not a fold"),
        (lambda: spend(fields={"customer": count()}), "two columns named customer"),
        (lambda: spend(fields={"_n": count()}), "starts with an underscore"),
        (lambda: spend(by="_key"), "starts with an underscore"),
        (lambda: spend(fields={"city": latest("city")}), "latest depends on the order of rows"),
        (lambda: spend(fields={"t": top("amount", 0)}), "top keeps from 1 to 1000 values, not 0"),
        (lambda: spend(where=" "), "write it as a line of SQL"),
        (lambda: state("s", topic="t", key="id", fields={"t": top("amount", 2)}), "top is a field of aggregate"),
    ],
)
def test_a_mistake_is_said_when_it_is_declared(declare: Callable[[], object], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("inputs", "table", "changed", "is_full"),
    [(10_000_000, 100_000, 10_000, False), (1_000_000, 100_000, 10_000, False), (100_000, 1_000, 10, True),
     (1_000_000, 900_000, 900_000, True)],
)  # fmt: skip
def test_the_full_query_runs_where_it_is_cheaper(inputs: int, table: int, changed: int, *, is_full: bool) -> None:
    work = Work(inputs=inputs, read=inputs, table=table, changed=changed, of_parts=True)
    assert (why_full(work) is not None) is is_full


def test_few_rows_that_came_make_an_aggregate_cheaper_sooner() -> None:
    work = Work(inputs=600_000, read=0, table=100_000, changed=10_000, of_parts=True)
    assert why_full(work) is not None
    assert why_full(replace(work, here=True)) is None
