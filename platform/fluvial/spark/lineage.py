"""
Which columns a DataFrame's columns were made from, as Spark's own analysis of it tells.

Every expression with a name has an id, and names the ids that it is made of; these are followed down to the columns of
the frames that a transform was given. A column that only decides which rows there are (a filter, a join) is none.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Source = tuple[str, str]
"""The name of a table, and of a column of it."""


def column_sources(answer: "DataFrame", inputs: Mapping[str, "DataFrame"]) -> dict[str, list[Source]]:
    """
    For each column of `answer`, the columns of `inputs`, frames by the names of their tables, that it is made from.

    Where Spark does not tell (a function in Python over whole rows), it is all columns that went in. Nothing for a
    session of Spark Connect, which keeps the analysis to itself.
    """
    if not hasattr(answer, "_jdf"):
        return {}
    known = {table: _analyzed(frame) for table, frame in inputs.items()}
    plan = _analyzed(answer)
    found: dict[int, set[Source]] = {}
    for table, leaf in known.items():
        _remember(found, leaf, table)
    _follow(plan, found, known)
    return {attribute.name(): sorted(found.get(_id(attribute), ())) for attribute in _items(plan.output())}


def _analyzed(frame: "DataFrame") -> Any:
    return frame._jdf.queryExecution().analyzed()


def _remember(found: dict[int, set[Source]], plan: Any, table: str) -> None:
    for attribute in _items(plan.output()):
        found.setdefault(_id(attribute), set()).add((table, attribute.name()))


def _follow(plan: Any, found: dict[int, set[Source]], known: Mapping[str, Any]) -> None:
    children = list(_items(plan.children()))
    for child in children:
        _follow(child, found, known)
    if not children:
        # A frame that is joined with itself stands in the plan twice, the second time with ids of its own.
        for table, leaf in known.items():
            if _id_of_first(plan) not in found and _leaf(leaf).sameResult(plan):
                _remember(found, plan, table)
        return
    for expression in _items(plan.expressions()):
        for named in _named(expression):
            found.setdefault(_id(named), set()).update(_sources(named.references().toSeq(), found))
    for place, attribute in enumerate(_items(plan.output())):
        if _id(attribute) in found and plan.nodeName() != "Union":
            continue
        given = (
            [child.output().apply(place) for child in children]
            if plan.nodeName() == "Union"
            else [each for child in children for each in _items(child.output())]
        )
        sources = [found.get(_id(each), set()) for each in given]
        found.setdefault(_id(attribute), set()).update(*sources)


def _named(expression: Any) -> Iterator[Any]:
    """The parts of an expression that give a name to something."""
    if expression.getClass().getSimpleName() == "Alias":
        yield expression
    for child in _items(expression.children()):
        yield from _named(child)


def _sources(attributes: Any, found: Mapping[int, set[Source]]) -> set[Source]:
    return {source for attribute in _items(attributes) for source in found.get(_id(attribute), ())}


def _leaf(plan: Any) -> Any:
    while plan.children().size():
        plan = plan.children().apply(0)
    return plan


def _id_of_first(plan: Any) -> int:
    return _id(plan.output().apply(0)) if plan.output().size() else -1


def _id(named: Any) -> int:
    return int(named.exprId().id())


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(place) for place in range(sequence.size()))
