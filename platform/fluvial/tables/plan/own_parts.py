"""
Transforms whose rows are parts of themselves: what they make of rows that came can be added to what they made before.

Such is one that groups rows by the key and takes sums, counts and extremes of them. Where rows only came to its input,
it runs over these alone. It is decided from the plan that Spark has analysed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluvial.delta.jvm import converters
from fluvial.tables.declare.folds import Kind
from fluvial.tables.plan.row_by_row import flows_by_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KINDS = {"Sum": Kind.SUM, "Count": Kind.COUNT, "Min": Kind.MIN, "Max": Kind.MAX}


def own_parts(answer: "DataFrame", key: Sequence[str], names: Sequence[str]) -> Mapping[str, Kind] | None:
    """
    How each column of `answer` beside its `key` is added up, None where it is not such a transform.

    Its input is called `names`, and known by its number (:func:`~fluvial.tables.plan.key_locality.marked`).
    """
    from py4j.protocol import Py4JError

    try:
        return _own_parts(answer, key, names)
    except Py4JError:
        # Classes of another Spark.
        return None


def _own_parts(answer: "DataFrame", key: Sequence[str], names: Sequence[str]) -> Mapping[str, Kind] | None:
    java = converters(answer.sparkSession).asJava
    plan = answer._jdf.queryExecution().analyzed()
    columns = {attribute.name(): attribute.exprId().id() for attribute in java(plan.output())}
    while (kind := plan.getClass().getSimpleName()) in {"Project", "SubqueryAlias"}:
        (child,) = java(plan.children())
        if kind == "Project":
            chosen = {each.exprId().id(): _source(each) for each in java(plan.projectList())}
            columns = {name: chosen.get(at) for name, at in columns.items()}
        plan = child
    if kind != "Aggregate" or None in columns.values():
        return None
    made = {each.exprId().id(): each for each in java(plan.aggregateExpressions())}
    grouped = list(java(plan.groupingExpressions()))
    by = [made[columns[name]] for name in key]
    if len(by) != len(grouped) or not all(any(_held(one).semanticEquals(each) for one in by) for each in grouped):
        return None
    kinds = {name: _kind(made[at]) for name, at in columns.items() if name not in key}
    if None in kinds.values() or not flows_by_row(answer, plan.child(), (0,), names):
        return None
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _source(expression: Any) -> int | None:
    """The number of the column that an expression passes on."""
    held = _held(expression)
    return int(held.exprId().id()) if held.getClass().getSimpleName() == "AttributeReference" else None


def _held(expression: Any) -> Any:
    return expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def _kind(expression: Any) -> Kind | None:
    """How what an aggregate makes of some rows is added to what it makes of others."""
    aggregate = _held(expression)
    if aggregate.getClass().getSimpleName() != "AggregateExpression" or aggregate.isDistinct():
        return None
    function = aggregate.aggregateFunction()
    kind = _KINDS.get(function.getClass().getSimpleName())
    # One that gives null where a sum is too large is not the sum of two.
    return None if kind is Kind.SUM and function.evalMode().toString() != "ANSI" else kind
