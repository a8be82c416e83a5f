"""
Whether a transform can be computed for some keys alone: the rows of a key must depend on the inputs' rows of that key.

It is decided from the plan that Spark has analysed, from the inputs up. What an attribute holds is followed by a name:
`key 0` for the first column of the key, `1.amount` for a column of the second input, the text of the expression for
what is computed. An operator that brings rows of several keys together is refused, unless it does so within the key.
What a Python function does with the rows that it is given is not seen; columns that it returns under the name of a
column of the key are taken for it.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from fluvial.delta.jvm import converters
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.plan.repeatable import unrepeatable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INPUT = "_fluvial_input_"
_ATTRIBUTE = re.compile(r"[^\s#(),\[\]]+#(\d+)L?")
_TEXT_MAX = 500
# Operators that keep or drop rows, or make several of one, and look at no other row.
ROW_BY_ROW = frozenset(
    {
        "Filter", "SubqueryAlias", "View", "Generate", "Repartition", "RepartitionByExpression",
        "RebalancePartitions", "ResolvedHint", "UnresolvedHint", "Expand", "CollectMetrics", "BatchEvalPython",
        "ArrowEvalPython",
    }
)  # fmt: skip
PYTHON_ROWS = frozenset({"MapInPandas", "MapInArrow", "PythonMapInArrow"})
_PYTHON_GROUPS = frozenset({"FlatMapGroupsInPandas", "FlatMapGroupsInArrow"})
_LEAVES = frozenset({"LocalRelation", "OneRowRelation", "LogicalRDD", "LogicalRelation", "Range", "HiveTableRelation"})
LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"})

Found = tuple[str, frozenset[tuple[int, str]]]
"""
What an attribute holds, and after which outer joins it may be null instead: (number of the join, its side).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """
    What a plan's rows are: `of_keys` where each belongs to one key, else the same whatever keys are read. `holds` has
    what is known of an attribute by its number.
    """

    of_keys: bool
    holds: Mapping[int, Found]


def marked(frame: "DataFrame", number: int) -> "DataFrame":
    """
    An input, known again in the plan of the answer by its number.
    """
    return frame.alias(f"{INPUT}{number}")


def check_key_locality(declaration: Pipeline, inputs: Sequence["DataFrame"], answer: "DataFrame") -> None:
    """
    Raise DeclarationError, in one line, where `answer` cannot be computed key by key.

    `inputs` are the frames that the transform was called with, each :func:`marked`. No client of Spark Connect.
    """
    lacking = [column for column in declaration.key if column not in answer.columns]
    if lacking:
        raise DeclarationError(
            f'pipeline("{declaration.name}"): the key {lacking[0]} is no column of what it returns '
            f"({', '.join(answer.columns)}): return it"
        )
    _check_types(declaration, inputs, answer)
    walk = _Walk(declaration, inputs)
    plan = answer._jdf.queryExecution().analyzed()
    rows = walk.rows(plan)
    output = {attribute.name(): _number(attribute) for attribute in walk.java(plan.output())}
    for index, column in enumerate(declaration.key):
        if not _is_key(rows.holds.get(output[column]), index):
            walk.refuse(f"column {column} of what it returns may differ from the key of the rows it is made of",
                        "return the column that leads to the key in the inputs, unchanged")  # fmt: skip


def check_repeatable(declaration: Pipeline, inputs: Sequence["DataFrame"], answer: "DataFrame") -> None:
    """
    Raise DeclarationError, in one line, where the columns of an `answer` that is a known join may have other values
    each time, or what leads to the key is of another type than the key.
    """
    _check_types(declaration, inputs, answer)
    _Walk(declaration, inputs).check_repeatable(answer._jdf.queryExecution().analyzed())


def _check_types(declaration: Pipeline, inputs: Sequence["DataFrame"], answer: "DataFrame") -> None:
    from pyspark.errors import AnalysisException

    wanted = dict(answer.dtypes)
    for table, frame in zip(declaration.inputs, inputs, strict=True):
        for column, step in zip(declaration.key, declaration.paths[table] or (), strict=False):
            try:
                ((_, kind),) = frame.selectExpr(step).dtypes
            except AnalysisException as error:
                line = str(error).strip().splitlines()[0]
                raise DeclarationError(
                    f'pipeline("{declaration.name}"): {step!r} does not lead from {table} to the key {column}: {line}; '
                    f'say what does, as in inputs={{"{table}": "<column>"}}'
                ) from error
            if kind != wanted[column]:
                raise DeclarationError(
                    f'pipeline("{declaration.name}"): {step!r} of {table} is {kind}, and the key {column} that the '
                    f"function returns is {wanted[column]}: cast one of them"
                )


class _Walk:
    """One look at a plan."""

    def __init__(self, declaration: Pipeline, inputs: Sequence["DataFrame"]) -> None:
        self._what = f'pipeline("{declaration.name}")'
        self._key = declaration.key
        self._paths = [declaration.paths[table] for table in declaration.inputs]
        self._inputs = inputs
        self._session = inputs[0].sparkSession
        self._joins = 0
        self._shared: dict[int, tuple[_Rows, list[int]]] = {}
        self._operators: Mapping[str, Callable[..., _Rows]] = {
            "Project": self._projected,
            "Aggregate": self._aggregated,
            "Window": self._windowed,
            "Join": self._joined,
            "Union": self._united,
            "Intersect": self._compared,
            "Except": self._compared,
            "Distinct": self._distinct,
            "Deduplicate": self._deduplicated,
            "Sort": self._sorted,
            "Sample": self._sampled,
            **dict.fromkeys(LIMITS, self._limited),
            **dict.fromkeys(_PYTHON_GROUPS, self._in_python),
            **dict.fromkeys(PYTHON_ROWS, self._named_alike),
        }
        # The texts of the expressions that lead to a column of the key.
        self._leading: dict[str, str] = {}
        for number, path in enumerate(self._paths):
            for index, step in enumerate(path or ()):
                self._leading[self._text_of_path(number, step)] = f"key {index}"

    def java(self, sequence: Any) -> list[Any]:
        """The items of a sequence of Scala's."""
        return list(converters(self._session).asJava(sequence))

    def refuse(self, why: str, how: str) -> NoReturn:
        """Raise what the plan is refused by."""
        raise DeclarationError(f"{self._what} has the key {', '.join(self._key)}, and {why}: {how}, or leave key out")

    def rows(self, plan: Any) -> _Rows:
        """What the rows of a plan are."""
        kind = plan.getClass().getSimpleName()
        if kind == "WithCTE":
            for each in self.java(plan.cteDefs()):
                self._shared[each.id()] = self.rows(each.child()), self._numbers(each)
            return self.rows(plan.plan())
        if kind == "CTERelationRef":
            rows, numbers = self._shared[plan.cteId()]
            found = zip(self._numbers(plan), numbers, strict=True)
            return replace(rows, holds={own: rows.holds[old] for own, old in found if old in rows.holds})
        if kind == "SubqueryAlias" and plan.alias().startswith(INPUT):
            return self._of_input(plan, int(plan.alias().removeprefix(INPUT)))
        children = [self.rows(child) for child in self.java(plan.children())]
        self._check_subqueries(plan)
        self.check_repeatable(plan)
        if not any(child.of_keys for child in children):
            if not children and kind not in _LEAVES:
                self.refuse(f"{plan.nodeName()} is an operator that fluvial does not know", "leave it out")
            return _Rows(of_keys=False, holds={})
        if kind in ROW_BY_ROW:
            return children[0]
        compute = self._operators.get(kind)
        if compute is None:
            self.refuse(f"{plan.nodeName()} is an operator that fluvial does not know", "leave it out")
        return compute(plan, *children)

    def _compared(self, plan: Any, *children: _Rows) -> _Rows:
        for child, rows in zip(self.java(plan.children()), children, strict=True):
            self._require_key(rows, self._numbers(child), f"{plan.nodeName().lower()} compares rows of all keys")
        return replace(children[0], of_keys=True)

    def _aggregated(self, plan: Any, rows: _Rows) -> _Rows:
        grouped = self.java(plan.groupingExpressions())
        self._require_texts(rows, grouped, "an aggregate is over rows of all keys", "group by the key")
        return self._with_aliases(rows, self.java(plan.aggregateExpressions()))

    def _windowed(self, plan: Any, rows: _Rows) -> _Rows:
        parts = self.java(plan.partitionSpec())
        self._require_texts(rows, parts, "a window is over rows of all keys", "partition it by the key")
        return self._with_aliases(rows, self.java(plan.windowExpressions()))

    def _distinct(self, plan: Any, rows: _Rows) -> _Rows:
        self._require_key(rows, self._numbers(plan), "distinct compares rows of all keys")
        return rows

    def _deduplicated(self, plan: Any, rows: _Rows) -> _Rows:
        numbers = [_number(each) for each in self.java(plan.keys())]
        self._require_key(rows, numbers, "dropDuplicates compares rows of all keys")
        return rows

    def _sorted(self, plan: Any, rows: _Rows) -> _Rows:
        if getattr(plan, "global")():
            self.refuse("a sort is over rows of all keys", "leave it out, as a table has no order")
        return rows

    def _limited(self, _plan: Any, _rows: _Rows) -> NoReturn:
        self.refuse("a limit is over rows of all keys", "number the rows in a window partitioned by the key")

    def _sampled(self, _plan: Any, _rows: _Rows) -> NoReturn:
        self.refuse("a sample is another one each time", "leave it out")

    def _in_python(self, plan: Any, rows: _Rows) -> _Rows:
        grouped = self.java(plan.groupingAttributes())
        self._require_texts(rows, grouped, "a Python function gets groups of all keys", "group by the key")
        return self._named_alike(plan, rows)

    def _projected(self, plan: Any, rows: _Rows) -> _Rows:
        return self._with_aliases(rows, self.java(plan.projectList()))

    def _of_input(self, plan: Any, number: int) -> _Rows:
        path = self._paths[number]
        if path is None:
            return _Rows(of_keys=False, holds={})
        texts = {_number(each): f"{number}.{each.name()}" for each in self.java(plan.output())}
        return _Rows(
            of_keys=True, holds={at: (self._leading.get(text, text), frozenset()) for at, text in texts.items()}
        )

    def _text_of_path(self, number: int, step: str) -> str:
        plan = self._inputs[number].selectExpr(step)._jdf.queryExecution().analyzed()
        (expression,) = self.java(plan.projectList())
        (child,) = self.java(plan.children())
        texts: dict[int, Found] = {
            _number(each): (f"{number}.{each.name()}", frozenset()) for each in self.java(child.output())
        }
        if expression.getClass().getSimpleName() == "Alias":
            expression = expression.child()
        return _text(expression, texts)

    def _joined(self, plan: Any, left: _Rows, right: _Rows) -> _Rows:
        kind = plan.joinType().toString()
        holds = {**left.holds, **right.holds}
        if not (left.of_keys and right.of_keys):
            keeps = {"LeftOuter": left, "LeftSemi": left, "LeftAnti": left, "RightOuter": right}.get(kind)
            if kind not in {"Inner", "Cross"} and (keeps is None or not keeps.of_keys):
                self.refuse(
                    "an outer join keeps rows of an input that is read whole", "keep the rows of the other side only"
                )
            return _Rows(of_keys=True, holds=holds)
        equal = set(self._equal_keys(plan, left, right))
        if len(equal) < len(self._key):
            missing = next(column for index, column in enumerate(self._key) if index not in equal)
            self.refuse(f"a join brings rows of different {missing} together", "join by the key as well")
        self._joins += 1
        if kind in {"LeftOuter", "FullOuter"}:
            holds.update(_nullable(right.holds, self._joins, "right"))
        if kind in {"RightOuter", "FullOuter"}:
            holds.update(_nullable(left.holds, self._joins, "left"))
        return _Rows(of_keys=True, holds=holds)

    def _equal_keys(self, plan: Any, left: _Rows, right: _Rows) -> Iterator[int]:
        """The columns of the key that a join's condition has equal on both sides."""
        condition = plan.condition()
        for each in _conjuncts(condition.get()) if condition.isDefined() else ():
            kind = each.getClass().getSimpleName()
            if kind not in {"EqualTo", "EqualNullSafe"}:
                continue
            for one, other in ((each.left(), each.right()), (each.right(), each.left())):
                ours, theirs = self._held(one, left), self._held(other, right)
                for index in range(len(self._key)):
                    both = (ours, theirs)
                    # Null equals nothing, so that what may be null is the key where it is equal.
                    if all(_is_key(each, index) or (kind == "EqualTo" and _may_be_key(each, index)) for each in both):
                        yield index

    def _united(self, plan: Any, *children: _Rows) -> _Rows:
        if not all(child.of_keys for child in children):
            self.refuse("a union adds rows of an input that is read whole to each key", "give the input a path")
        columns = zip(*(self._numbers(child) for child in self.java(plan.children())), strict=True)
        holds = {}
        for number, column in zip(self._numbers(plan), columns, strict=True):
            found = {rows.holds.get(each) for rows, each in zip(children, column, strict=True)}
            if len(found) == 1 and (same := found.pop()) is not None:
                holds[number] = same
        return _Rows(of_keys=True, holds=holds)

    def _with_aliases(self, rows: _Rows, expressions: Iterable[Any]) -> _Rows:
        named = [each for each in expressions if each.getClass().getSimpleName() == "Alias"]
        return replace(rows, holds={**rows.holds, **{_number(each): self._held(each.child(), rows) for each in named}})

    def _held(self, expression: Any, rows: _Rows) -> Found:
        """What an expression over rows holds."""
        kind = expression.getClass().getSimpleName()
        if kind == "AttributeReference":
            return rows.holds.get(_number(expression), (str(expression.toString()), frozenset()))
        if kind == "Coalesce":
            found = [self._held(each, rows) for each in self.java(expression.children())]
            for index in range(len(self._key)):
                if all(_may_be_key(each, index) for each in found) and _never_null(found):
                    return f"key {index}", frozenset()
        text = _text(expression, rows.holds)
        nulls = frozenset[tuple[int, str]]().union(
            *(
                rows.holds.get(_number(each), ("", frozenset()))[1]
                for each in self.java(expression.references().toSeq())
            )
        )
        return self._leading.get(text, text), nulls

    def _named_alike(self, plan: Any, rows: _Rows) -> _Rows:
        """What a Python function returns under the name of a column of the key that it is given."""
        (child,) = self.java(plan.children())
        given = {each.name(): rows.holds.get(_number(each)) for each in self.java(child.output())}
        holds = {_number(each): given.get(each.name()) for each in self.java(plan.output())}
        return _Rows(
            of_keys=True,
            holds={at: found for at, found in holds.items() if found is not None and found[0].startswith("key ")},
        )

    def _require_key(self, rows: _Rows, numbers: Iterable[int], why: str) -> None:
        found = [rows.holds.get(number) for number in numbers]
        self._require(found, why, "have it compare the columns of the key as well")

    def _require_texts(self, rows: _Rows, expressions: Iterable[Any], why: str, how: str) -> None:
        self._require([self._held(each, rows) for each in expressions], why, how)

    def _require(self, found: Sequence[Found | None], why: str, how: str) -> None:
        for index, column in enumerate(self._key):
            if not any(_is_key(each, index) for each in found):
                self.refuse(why if len(self._key) == 1 else f"{why} (not by {column})", how)

    def _check_subqueries(self, plan: Any) -> None:
        for each in self.java(plan.subqueries()):
            if self.rows(each).of_keys:
                self.refuse("a subquery is over rows of all keys", "join by the key instead")

    def check_repeatable(self, plan: Any) -> None:
        """Refuse an operator whose expressions may give other values each time."""
        found = unrepeatable(self.java, plan)
        if found is not None:
            self.refuse(*found)

    def _numbers(self, plan: Any) -> list[int]:
        return [_number(each) for each in self.java(plan.output())]


def _number(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _text(expression: Any, holds: Mapping[int, Found]) -> str:
    """An expression's text in which attributes are what they hold."""

    def held(match: re.Match[str]) -> str:
        found = holds.get(int(match[1]))
        return match[0] if found is None else found[0]

    text = _ATTRIBUTE.sub(held, str(expression.toString()))
    # An expression that uses another one twice, again and again, doubles it each time.
    return text if len(text) <= _TEXT_MAX else hashlib.sha256(text.encode()).hexdigest()


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition.getClass().getSimpleName() == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _nullable(holds: Mapping[int, Found], join: int, side: str) -> dict[int, Found]:
    return {at: (text, nulls | {(join, side)}) for at, (text, nulls) in holds.items()}


def _is_key(found: Found | None, index: int) -> bool:
    return found is not None and found == (f"key {index}", frozenset())


def _may_be_key(found: Found | None, index: int) -> bool:
    return found is not None and found[0] == f"key {index}"


def _never_null(found: Sequence[Found]) -> bool:
    """Whether one of several is there after all outer joins: it is never null, or two are of the sides of one join."""
    if any(not nulls for _, nulls in found):
        return True
    single = {next(iter(nulls)) for _, nulls in found if len(nulls) == 1}
    return any((join, "left") in single and (join, "right") in single for join, _ in single)
