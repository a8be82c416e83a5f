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

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    COLLECT_SET = "collect_set"
    COUNT_DISTINCT = "count_distinct"
    TOP = "top"
    LAST_PARTITION = "last_partition"
    LAST_OFFSET = "last_offset"
    LAST_TIMESTAMP = "last_timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """
    The expressions of a kind of fold, with the names to be filled in: of `partial`, `expr`, `where`, `place` and the
    window `over`; of `merge`, `old` and `new`; of `result`, `it`. `remembers`: the result alone is not enough to go on
    from.

    A window takes no FILTER: what `where` leaves out is null to each aggregate, and so nothing.
    """

    partial: str
    merge: str
    result: str = "{it}"
    remembers: bool = False


def _placed(choose: str, before: str, condition: str = "{where}") -> _Recipe:
    return _Recipe(
        partial=f"{choose}(named_struct('place', {{place}}, 'value', {{expr}}), "
        f"CASE WHEN {condition} THEN {{place}} END){{over}}",
        merge=f"CASE WHEN {{new}} IS NULL THEN {{old}} WHEN {{old}} IS NULL OR {{new}}.place {before} {{old}}.place "
        "THEN {new} ELSE {old} END",
        result="({it}).value",
        remembers=True,
    )


def _of_last_record(column: str) -> _Recipe:
    """What `_placed` makes of a column of the log, by the place in the log whatever order the declaration has."""
    recipe = _placed("max_by", ">")
    return replace(recipe, partial=recipe.partial.replace("{place}", PLACE).replace("{expr}", column))


def _chosen(expr: str) -> str:
    return f"CASE WHEN {{where}} THEN {expr} END"


_RECIPES: Mapping[Kind, _Recipe] = {
    Kind.LATEST: _placed("max_by", ">"),
    Kind.LAST_NON_NULL: _placed("max_by", ">", "{where} AND ({expr}) IS NOT NULL"),
    Kind.FIRST: _placed("min_by", "<"),
    Kind.SUM: _Recipe(partial=f"coalesce(sum({_chosen('{expr}')}){{over}}, 0)", merge="{old} + {new}"),
    Kind.COUNT: _Recipe(partial=f"count({_chosen('1')}){{over}}", merge="{old} + {new}"),
    Kind.MIN: _Recipe(partial=f"min({_chosen('{expr}')}){{over}}", merge="least({old}, {new})"),
    Kind.MAX: _Recipe(partial=f"max({_chosen('{expr}')}){{over}}", merge="greatest({old}, {new})"),
    Kind.MEAN: _Recipe(
        partial=f"named_struct('sum', coalesce(sum({_chosen('CAST({expr} AS DOUBLE)')}){{over}}, 0D), "
        f"'count', count({_chosen('{expr}')}){{over}})",
        merge="named_struct('sum', {old}.sum + {new}.sum, 'count', {old}.count + {new}.count)",
        result="CASE WHEN ({it}).count > 0 THEN ({it}).sum / ({it}).count END",
        remembers=True,
    ),
    Kind.COLLECT_SET: _Recipe(
        partial=f"collect_set({_chosen('{expr}')}){{over}}",
        merge="array_union({old}, {new})",
        result="array_sort({it})",
    ),
    Kind.COUNT_DISTINCT: _Recipe(
        partial=f"hll_sketch_agg({_chosen('CAST({expr} AS STRING)')}){{over}}",
        merge="hll_union({old}, {new})",
        result="hll_sketch_estimate({it})",
        remembers=True,
    ),
    Kind.LAST_PARTITION: _of_last_record("_partition"),
    Kind.LAST_OFFSET: _of_last_record("_offset"),
    Kind.LAST_TIMESTAMP: _of_last_record("_timestamp"),
}
_NUMERIC = frozenset({Kind.SUM, Kind.MEAN})
# Of these a last digit may depend on the order in which floating-point numbers were added.
FLOATING = _NUMERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """
    One field of a state or an aggregate: a fold over an SQL expression of the rows' fields, where an SQL condition
    holds. `most` is how many values `top` keeps.
    """

    kind: Kind
    expr: str | None = None
    where: str | None = None
    most: int | None = None

    @property
    def remembers(self) -> bool:
        """
        Whether the fold needs more than its result to go on: it then has an entry in `_fold`.
        """
        return _RECIPES[self.kind].remembers

    @property
    def is_numeric(self) -> bool:
        """
        Whether the expression must be a number.
        """
        return self.kind in _NUMERIC

    def partial(self, place: str = PLACE, over: str = "") -> str:
        """
        The aggregate over a batch's rows, which carry the event's fields, `_partition`, `_offset` and `_tombstone`.

        `place` is what an event comes before or after another by; `over` is a window, for the aggregate up to each row.
        """
        where = f"NOT _tombstone AND ({self.where})" if self.where else "NOT _tombstone"
        over = over and f" OVER ({over})"
        return _RECIPES[self.kind].partial.format(expr=self.expr, where=where, place=place, over=over)

    def merge(self, old: str, new: str) -> str:
        """
        The partial value of two parts, where `old` is in the table and `new` comes from the batch.
        """
        return _RECIPES[self.kind].merge.format(old=old, new=new)

    def result(self, partial: str) -> str:
        """
        What the user sees of a partial value.
        """
        return _RECIPES[self.kind].result.format(it=partial)

    def __str__(self) -> str:
        most, where = self.most and str(self.most), f"where {self.where}" if self.where else None
        arguments = ", ".join(part for part in (self.expr, most, where) if part)
        return f"{self.kind}({arguments})"


POSITION_FIELDS: Mapping[str, Fold] = {
    "_partition": Fold(kind=Kind.LAST_PARTITION),
    "_offset": Fold(kind=Kind.LAST_OFFSET),
    "_updated_at": Fold(kind=Kind.LAST_TIMESTAMP),
}
"""The last record that a row holds: its place in the log and its timestamp."""


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


def collect_set(expr: str, where: str | None = None) -> Fold:
    """
    The different values that are not null, in ascending order; an empty array where there is nothing.

    All of them are kept in the entity's row: for few values an entity.
    """
    return Fold(kind=Kind.COLLECT_SET, expr=expr, where=where)


def count_distinct(expr: str, where: str | None = None) -> Fold:
    """
    About how many different values that are not null there were: within 2 % for many, exact for a few (HyperLogLog).

    As a field of :func:`~fluvial.tables.declare.aggregates.aggregate` it is exact.
    """
    return Fold(kind=Kind.COUNT_DISTINCT, expr=expr, where=where)


def top(expr: str, most: int, where: str | None = None) -> Fold:
    """
    The `most` greatest values that are not null, the greatest first, as often as they occur; of :func:`aggregate` only.

    What comes with a value goes into a struct behind it, as in `top("struct(amount, item)", 3)`.
    """
    return Fold(kind=Kind.TOP, expr=expr, where=where, most=most)
