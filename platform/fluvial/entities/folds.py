"""
The folds of a state table: how the events of one entity become one value.

A fold is three SQL expressions, so that a batch is reduced by Spark's own aggregations and joined to the row that is
there without replaying the past:

- *partial*: the events of one batch to a partial value;
- *merge*: the partial value in the table and the one of the batch to a new partial value;
- *result*: a partial value to what the user sees.

For most folds the partial value is the result. Where it is not (a mean needs its sum and count; the last value needs
its place in the log) it is kept in the table's `_fold` column. Places are compared as (partition, offset), so that the
table does not depend on where batches were cut.
"""

from dataclasses import dataclass
from enum import StrEnum

# The place of an event in its topic.
PLACE = "struct(_partition, _offset)"


class Kind(StrEnum):
    """
    The folds there are.
    """

    LATEST = "latest"
    LAST_NON_NULL = "last_non_null"
    FIRST = "first"
    SUM = "sum"
    COUNT = "count"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


_PLACED = frozenset({Kind.LATEST, Kind.LAST_NON_NULL, Kind.FIRST})
_NUMERIC = frozenset({Kind.SUM, Kind.MEAN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """
    One field of a state: a fold over an SQL expression of the event's fields, where an SQL condition holds.
    """

    kind: Kind
    expr: str | None = None
    where: str | None = None

    @property
    def remembers(self) -> bool:
        """
        Whether the fold needs more than its result to go on: it then has an entry in `_fold`.
        """
        return self.kind in _PLACED or self.kind is Kind.MEAN

    @property
    def is_numeric(self) -> bool:
        """
        Whether the expression must be a number.
        """
        return self.kind in _NUMERIC

    def partial(self) -> str:
        """
        The aggregate over a batch's rows, which carry the event's fields, `_partition`, `_offset` and `_tombstone`.
        """
        condition = f"NOT _tombstone AND ({self.where})" if self.where else "NOT _tombstone"
        chosen = f"FILTER (WHERE {condition})"
        match self.kind:
            case Kind.COUNT:
                return f"count(*) {chosen}"
            case Kind.SUM:
                return f"coalesce(sum({self.expr}) {chosen}, 0)"
            case Kind.MIN | Kind.MAX:
                return f"{self.kind}({self.expr}) {chosen}"
            case Kind.MEAN:
                return (
                    f"named_struct('sum', coalesce(sum(CAST({self.expr} AS DOUBLE)) {chosen}, 0D), "
                    f"'count', count({self.expr}) {chosen})"
                )
            case Kind.LATEST | Kind.FIRST:
                choose = "min_by" if self.kind is Kind.FIRST else "max_by"
                return f"{choose}({_placed(self.expr)}, {PLACE}) {chosen}"
            case Kind.LAST_NON_NULL:
                return f"max_by({_placed(self.expr)}, {PLACE}) FILTER (WHERE {condition} AND ({self.expr}) IS NOT NULL)"

    def merge(self, old: str, new: str) -> str:
        """
        The partial value of two parts, where `old` is in the table and `new` comes from the batch.
        """
        match self.kind:
            case Kind.COUNT | Kind.SUM:
                return f"{old} + {new}"
            case Kind.MIN:
                return f"least({old}, {new})"
            case Kind.MAX:
                return f"greatest({old}, {new})"
            case Kind.MEAN:
                return f"named_struct('sum', {old}.sum + {new}.sum, 'count', {old}.count + {new}.count)"
            case Kind.LATEST | Kind.LAST_NON_NULL | Kind.FIRST:
                before = "<" if self.kind is Kind.FIRST else ">"
                return (
                    f"CASE WHEN {new} IS NULL THEN {old} WHEN {old} IS NULL OR {new}.place {before} {old}.place "
                    f"THEN {new} ELSE {old} END"
                )

    def result(self, partial: str) -> str:
        """
        What the user sees of a partial value.
        """
        match self.kind:
            case Kind.MEAN:
                return f"CASE WHEN ({partial}).count > 0 THEN ({partial}).sum / ({partial}).count END"
            case Kind.LATEST | Kind.LAST_NON_NULL | Kind.FIRST:
                return f"({partial}).value"
            case _:
                return partial

    def __str__(self) -> str:
        arguments = ", ".join(part for part in (self.expr, f"where {self.where}" if self.where else None) if part)
        return f"{self.kind}({arguments})"


def _placed(expr: str | None) -> str:
    return f"named_struct('place', {PLACE}, 'value', {expr})"


def latest(expr: str, where: str | None = None) -> Fold:
    """
    The value at the last event (for which `where` holds), null if it is null there.
    """
    return Fold(kind=Kind.LATEST, expr=expr, where=where)


def last_non_null(expr: str, where: str | None = None) -> Fold:
    """
    The last value that is not null.
    """
    return Fold(kind=Kind.LAST_NON_NULL, expr=expr, where=where)


def first(expr: str, where: str | None = None) -> Fold:
    """
    The value at the first event (for which `where` holds), null if it is null there.
    """
    return Fold(kind=Kind.FIRST, expr=expr, where=where)


def sum_(expr: str, where: str | None = None) -> Fold:
    """
    The sum of what is not null; 0 where there is nothing.
    """
    return Fold(kind=Kind.SUM, expr=expr, where=where)


def count(where: str | None = None) -> Fold:
    """
    The number of events (for which `where` holds).
    """
    return Fold(kind=Kind.COUNT, where=where)


def min_(expr: str, where: str | None = None) -> Fold:
    """
    The smallest value; null where there is none.
    """
    return Fold(kind=Kind.MIN, expr=expr, where=where)


def max_(expr: str, where: str | None = None) -> Fold:
    """
    The largest value; null where there is none.
    """
    return Fold(kind=Kind.MAX, expr=expr, where=where)


def mean(expr: str, where: str | None = None) -> Fold:
    """
    The mean of what is not null, as a double; null where there is nothing.
    """
    return Fold(kind=Kind.MEAN, expr=expr, where=where)
