"""
Whether an operator of a plan makes the same rows of the same rows each time that it runs.
"""

from collections.abc import Callable, Iterable
from typing import Any

_CLOCKS = frozenset({"CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime"})
_ORDERING = frozenset({"SortArray", "ArraySort", "Size", "ArrayContains"})
_COLLECTED = frozenset({"CollectList", "CollectSet"})
# Functions whose value depends on the order of the rows, and what gives them one.
_UNORDERED = {
    "CollectList": "sort it, as in sort_array(collect_list(…))",
    "CollectSet": "sort it, as in sort_array(collect_set(…))",
    "First": "take min_by or max_by with an order",
    "Last": "take min_by or max_by with an order",
    "AnyValue": "take min or max",
    "NthValue": "give its window an order",
}
# The mark of columns that tables have beside their own (Spark's MetadataAttribute).
_OF_FILES = "__metadata_col"
_PLAIN = frozenset({"AttributeReference", "Literal"})

Java = Callable[[Any], list[Any]]
"""The items of a sequence of Scala's."""


def unrepeatable(java: Java, plan: Any) -> tuple[str, str] | None:
    """
    Why the expressions of an operator may give other values each time, and how to mend it; None where they do not.
    """
    for expression in java(plan.expressions()):
        found = _unrepeatable(java, expression, frozenset())
        if found is not None:
            return found
    return None


def _unrepeatable(java: Java, expression: Any, ordered: frozenset[str]) -> tuple[str, str] | None:
    """The same of an expression; the functions `ordered` are repeatable, as something orders their rows."""
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference" and expression.metadata().contains(_OF_FILES):
        return "it names where rows lie (_metadata), which changes when files are written together", "leave it out"
    if kind in _PLAIN:
        return None
    if kind in _CLOCKS:
        return "its rows depend on when it runs (the current time)", "take the time from an input"
    if kind in _ORDERING:
        ordered |= _COLLECTED
    if kind == "WindowExpression" and java(expression.windowSpec().orderSpec()):
        ordered |= _UNORDERED.keys()
    children = java(expression.children())
    is_unordered = kind in _UNORDERED and kind not in ordered
    if is_unordered or not (kind in _UNORDERED or expression.deterministic() or _have_other_values(children)):
        return f"{expression.prettyName()} gives another value each time", _UNORDERED.get(kind, "leave it out")
    for each in children:
        found = _unrepeatable(java, each, ordered)
        if found is not None:
            return found
    return None


def _have_other_values(expressions: Iterable[Any]) -> bool:
    """Whether one of several gives another value each time."""
    return any(not each.deterministic() for each in expressions)
