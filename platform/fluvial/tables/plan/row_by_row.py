"""
Whether a transform may be applied to the changed rows of some inputs alone: each row of its answer must be made of one
row of one of them, and of inputs that have not changed.

It is decided from the plan that Spark has analysed, from the inputs up. The rows of an operator are either made row by
row from the changed inputs (they flow), or do not depend on these. What Python functions remember between rows is not
seen.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.delta.jvm import converters
from fluvial.tables.plan.key_locality import INPUT, LIMITS, PYTHON_ROWS, ROW_BY_ROW
from fluvial.tables.plan.repeatable import unrepeatable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ID = re.compile(r"#\d+L?")
# Rows whose content the plan tells, so that a change of it is seen.
_OWN_ROWS = frozenset({"LocalRelation", "OneRowRelation", "Range"})
# The side of a join whose rows each stay or go by the other side alone; both, where the join is inner.
_KEPT = {"Inner": (0, 1), "Cross": (0, 1), "LeftOuter": (0,), "LeftSemi": (0,), "LeftAnti": (0,), "RightOuter": (1,)}
_GROUPED = {
    "Aggregate": "an aggregate", "Window": "a window", "Distinct": "distinct", "Deduplicate": "distinct",
    "Intersect": "intersect", "Except": "except", "FlatMapGroupsInPandas": "a Python function by groups",
    "FlatMapGroupsInArrow": "a Python function by groups",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowByRow:
    """
    Why rows of an answer are not each made of one row of a changed input; `refusal` is None where they are.

    `plan` is a fingerprint of the plan with all its constants: two answers with the same one are the same function of
    their inputs, whatever a transform fetched by an action while it was called. None where the plan cannot be read.
    """

    plan: str | None
    refusal: str | None


def look_row_by_row(answer: "DataFrame", changed: Collection[int], names: Sequence[str]) -> RowByRow:
    """
    Look whether each row of `answer` is made of one row of one of the inputs with the numbers `changed`.

    The inputs, called `names`, are known by their numbers (:func:`~fluvial.tables.plan.key_locality.marked`). Not for a
    client of Spark Connect.
    """
    from py4j.protocol import Py4JError

    walk = _Walk(answer, changed, names)
    try:
        walk.flows(answer._jdf.queryExecution().analyzed())
    except Py4JError as error:
        return RowByRow(plan=None, refusal=f"its plan cannot be read ({type(error).__name__})")
    return RowByRow(plan=hashlib.sha256("\n".join(walk.said).encode()).hexdigest()[:16], refusal=walk.refusal)


def flows_by_row(answer: "DataFrame", plan: Any, changed: Collection[int], names: Sequence[str]) -> bool:
    """
    Whether each row of `plan`, which is a part of that of `answer`, is made of one row of a changed input.
    """
    from py4j.protocol import Py4JError

    walk = _Walk(answer, changed, names)
    try:
        return walk.flows(plan) and walk.refusal is None
    except Py4JError:
        return False


class _Walk:
    """One look at a plan."""

    def __init__(self, answer: "DataFrame", changed: Collection[int], names: Sequence[str]) -> None:
        self._session = answer.sparkSession
        self._changed, self._names = changed, names
        self._shared: dict[int, bool] = {}
        self.said: list[str] = []
        self.refusal: str | None = None

    def flows(self, plan: Any) -> bool:
        """Whether a plan's rows are made row by row from the changed inputs; else they do not depend on them."""
        kind = plan.getClass().getSimpleName()
        if kind == "WithCTE":
            for each in self._java(plan.cteDefs()):
                self._shared[each.id()] = self.flows(each.child())
            return self.flows(plan.plan())
        if kind == "CTERelationRef":
            self.said.append(f"{kind} {sorted(self._shared).index(plan.cteId())}")
            return self._shared[plan.cteId()]
        if kind == "SubqueryAlias" and plan.alias().startswith(INPUT):
            number = int(plan.alias().removeprefix(INPUT))
            self.said.append(f"input {number}")
            return number in self._changed
        flowing = [self.flows(child) for child in self._java(plan.children())]
        self._describe(plan, kind)
        for each in self._java(plan.subqueries()):
            if self.flows(each):
                self._refuse("a subquery looks at other rows than the one that changed")
        found = unrepeatable(self._java, plan)
        if found is not None:
            self._refuse(found[0])
        if not any(flowing):
            self._check_fixed(plan, kind, flowing)
            return False
        self._check(plan, kind, flowing)
        return True

    def _check(self, plan: Any, kind: str, flowing: list[bool]) -> None:
        """Refuse an operator over rows that changed which looks at more than one of them."""
        if kind in ROW_BY_ROW or kind in PYTHON_ROWS or kind in {"Project", "Sort"}:
            return
        if kind == "Union":
            if not all(flowing):
                self._refuse("a union adds rows that have not changed")
        elif kind == "Join":
            self._check_join(plan.joinType().toString(), flowing)
        elif kind in LIMITS or kind == "Sample":
            self._refuse(f"a {'sample' if kind == 'Sample' else 'limit'} looks at other rows than the one that changed")
        elif kind in _GROUPED:
            self._refuse(f'{_GROUPED[kind]} looks at other rows than the one that changed: with key="…" only the rows '
                         "of keys that changed are computed again")  # fmt: skip
        else:
            self._refuse(f"{plan.nodeName()} is an operator that fluvial does not know")

    def _check_join(self, how: str, flowing: list[bool]) -> None:
        if all(flowing):
            names = ", ".join(self._names[number] for number in sorted(self._changed))
            self._refuse(
                f"a join brings rows together that may both have changed ({names}): pin one of them to a version, "
                'or give the table a key="…"'
            )
        elif flowing.index(True) not in _KEPT.get(how, ()):
            self._refuse(f"an outer join ({how}) keeps rows of a table that is looked up")

    def _check_fixed(self, plan: Any, kind: str, flowing: list[bool]) -> None:
        """Refuse what may be other rows each time though no input has changed."""
        if not flowing and kind not in _OWN_ROWS:
            self._refuse(f"it reads rows that are of no input ({plan.nodeName()})")
        if kind in LIMITS or kind in {"Sample", "Deduplicate"}:
            self._refuse(f"{plan.nodeName()} may keep other rows each time")

    def _describe(self, plan: Any, kind: str) -> None:
        """Say what a plan is with all constants; the texts of plans themselves are cut off."""
        words = [kind, *(str(each.sql()) for each in self._java(plan.expressions()))]
        if kind == "Join":
            words.append(plan.joinType().toString())
        if kind == "LocalRelation":
            words.extend(str(row.toString()) for row in self._java(plan.data()))
        if kind in {"Range", "Generate"}:
            words.append(str(plan.toString().split("\n")[0]))
        self.said.append(_ID.sub("#", " ".join(words)))

    def _java(self, sequence: Any) -> list[Any]:
        return list(converters(self._session).asJava(sequence))

    def _refuse(self, why: str) -> None:
        """Keep the first reason; the walk goes on for the fingerprint."""
        self.refusal = self.refusal or why
