"""
Aggregates of a table by key, whose refresh needs the rows that came and went and no others.

A field is a fold, and its value is a part that can be merged with that of other rows: sums and counts add, of two
extremes one stays. What went is taken from sums and counts. Where it may have been an extreme, or digits of a floating
point number would be lost, the rows of the key are read again (:meth:`Aggregation.lost`). What a field needs beside its
value is in the table's column `_parts`, and the number of rows of a key in `_rows`: both are what the batch query makes
of the inputs, as all columns are.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from fluvial.tables.declare.declarations import DeclarationError, Pipeline, check_column, check_folds
from fluvial.tables.declare.folds import Fold, Kind
from fluvial.tables.declare.pipelines import pipeline
from fluvial.tables.declare.windows import WINDOW_END, WINDOW_START, TimeWindows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS, PARTS = "_rows", "_parts"
"""Columns of the table: how many rows a key has, and what fields need beside their values."""
WEIGHT = "_weight"
"""Of a row that came 1, and of one that went -1."""
IS_OLD, CHANGED = "_is_old", "_changed"
_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_FLOATING = frozenset({"float", "double"})
TOP_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """
    The expressions of a kind of field: `of_all` rows its part, of `signed` rows as well, with that which `went`; the
    `merge` of parts, and of what went; the `result` of a part; and when it is `lost` by what went.

    `{v}` is a row's value, `{w}` its weight, `{p}` a part, `{g}` what went, `{n}` a number of values. With `keeps` the
    part is more than the result, and kept. `why` says in words when the rows are read again.
    """

    of_all: str
    signed: str
    merge: str
    result: str = "{p}"
    went: str = "count(CASE WHEN {w} < 0 THEN {v} END)"
    merge_went: str = "sum({g})"
    lost: str = "false"
    keeps: bool = False
    why: str = ""


_SIGNED_SUM = "coalesce(sum(CASE WHEN {w} < 0 THEN -{v} ELSE {v} END), 0)"
_SIGNED_COUNT = "coalesce(sum(CASE WHEN {v} IS NOT NULL THEN {w} END), 0L)"
_CAME, _WENT = "CASE WHEN {w} > 0 THEN {v} END", "CASE WHEN {w} < 0 THEN {v} END"
_GREATEST = "slice(sort_array({all}, false), 1, {n})"
_ENTRIES = "map_from_entries({0})"
_RECIPES: Mapping[Kind, _Recipe] = {
    Kind.COUNT: _Recipe(of_all="count({v})", signed=_SIGNED_COUNT, merge="sum({p})"),
    Kind.SUM: _Recipe(of_all="coalesce(sum({v}), 0)", signed=_SIGNED_SUM, merge="sum({p})"),
    Kind.MEAN: _Recipe(
        of_all="named_struct('sum', coalesce(sum({v}), 0), 'count', count({v}))",
        signed=f"named_struct('sum', {_SIGNED_SUM}, 'count', {_SIGNED_COUNT})",
        merge="named_struct('sum', sum({p}.sum), 'count', sum({p}.count))",
        result="CASE WHEN {p}.count > 0 THEN CAST({p}.sum AS DOUBLE) / {p}.count END",
        keeps=True,
    ),
    Kind.MIN: _Recipe(
        of_all="min({v})",
        signed=f"min({_CAME})",
        merge="min({p})",
        went=f"min({_WENT})",
        merge_went="min({g})",
        lost="{g} IS NOT NULL AND ({p} IS NULL OR {g} <= {p})",
        why="whose least value may have gone",
    ),
    Kind.MAX: _Recipe(
        of_all="max({v})",
        signed=f"max({_CAME})",
        merge="max({p})",
        went=f"max({_WENT})",
        merge_went="max({g})",
        lost="{g} IS NOT NULL AND ({p} IS NULL OR {g} >= {p})",
        why="whose greatest value may have gone",
    ),
    Kind.TOP: _Recipe(
        of_all=_GREATEST.replace("{all}", "collect_list({v})"),
        signed=_GREATEST.replace("{all}", f"collect_list({_CAME})"),
        merge=_GREATEST.replace("{all}", "flatten(collect_list({p}))"),
        went=f"max({_WENT})",
        merge_went="max({g})",
        lost="{g} IS NOT NULL AND (size({p}) < {n} OR {g} >= element_at({p}, -1))",
        why="of whose greatest values one may have gone",
    ),
    # Of each value, ascending, how often it is there; `of_all` and `signed` are of the rows of one value.
    Kind.COUNT_DISTINCT: _Recipe(
        of_all="count(1)",
        signed="sum({w})",
        merge="coalesce(sort_array(map_entries(map_filter(map_zip_with({old}, {new}, "
        "(k, a, b) -> coalesce(a, 0L) + coalesce(b, 0L)), (k, n) -> n <> 0))), {nothing})",
        result="CAST(size({p}) AS BIGINT)",
        keeps=True,
    ),
}
_FLOATING_WHY = "from which a floating point number has gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """
    The rows of a table, of those `where` a condition holds, by the columns of `by` (SQL by name): a fold a field.

    Calling it makes the batch query. With `approximate` what went is taken from sums of floating point numbers.
    """

    by: Mapping[str, str]
    fields: Mapping[str, Fold]
    where: str | None = None
    approximate: bool = False

    def __call__(self, rows: "DataFrame") -> "DataFrame":
        return self.result(self.parts(self.values(rows)))

    def values(self, rows: "DataFrame", weight: str = "1L") -> "DataFrame":
        """
        The columns of `by`, the value of each field, null where a row has none, and the weight: row by row.

        Raises DeclarationError for the sum of something that is no number.
        """
        chosen = rows if self.where is None else rows.where(self.where)
        values = []
        for at, fold in enumerate(self.fields.values()):
            value = "1" if fold.expr is None else f"({fold.expr})"
            values.append(f"CASE WHEN {fold.where} THEN {value} END AS _v{at}" if fold.where else f"{value} AS _v{at}")
        valued = chosen.selectExpr(*(f"{step} AS `{name}`" for name, step in self.by.items()), *values,
                                   f"{weight} AS {WEIGHT}")  # fmt: skip
        kinds = dict(valued.dtypes)
        casts = {}
        for at, (name, fold) in enumerate(self.fields.items()):
            kind = kinds[f"_v{at}"]
            if fold.is_numeric and kind not in _WHOLE | _FLOATING and not kind.startswith("decimal"):
                raise DeclarationError(f"field {name}: {fold} is of {kind}, which is no number: cast it")
            if fold.is_numeric and kind in _WHOLE | _FLOATING:
                casts[f"_v{at}"] = "bigint" if kind in _WHOLE else "double"
        return valued.selectExpr(*(f"CAST(`{name}` AS {casts[name]}) AS `{name}`" if name in casts else f"`{name}`"
                                   for name in valued.columns))  # fmt: skip

    @property
    def version(self) -> str:
        """
        A fingerprint of what decides the rows.
        """
        fields = [f"{name} {fold}" for name, fold in self.fields.items()]
        said = [*map(str, self.by.items()), *fields, str(self.where), str(self.approximate)]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]

    def reads_again(self, floating: Sequence[str]) -> tuple[str, ...]:
        """
        For each field that may need it, which keys' rows are read again; `floating` fields are of such numbers.
        """
        found = []
        for name, fold in self.fields.items():
            why = _FLOATING_WHY if name in floating and not self.approximate else _RECIPES[fold.kind].why
            if why:
                found.append(f"{name}: the rows of a key {why}")
        return tuple(found)

    def keeps(self, name: str) -> bool:
        """
        Whether the part of a field is more than its value, and kept in PARTS.
        """
        return _RECIPES[self.fields[name].kind].keeps

    @property
    def merged_from(self) -> tuple[str, ...]:
        """
        The columns of the table, beside those of `by`, from which a refresh goes on.
        """
        kept = (PARTS,) if any(map(self.keeps, self.fields)) else ()
        return (*(name for name in self.fields if not self.keeps(name)), ROWS, *kept)

    def changed_parts(self, changes: "DataFrame", weight: str, *, only_came: bool) -> "DataFrame":
        """
        The parts of rows that came and went, with what went and the number CHANGED; `weight` is SQL for 1 and -1.
        """
        rows = self.values(changes, weight)
        if only_came:
            return self.parts(rows, signed=True)
        of_all = rows.groupBy(*rows.columns[:-1]).agg(_expr(f"sum({WEIGHT}) AS {WEIGHT}"))
        # Rows that were written to another file unchanged both came and went.
        apart = f"explode(array_repeat(sign({WEIGHT}), CAST(abs({WEIGHT}) AS INT)))"
        left = [f"`{name}`" for name in rows.columns[:-1]]
        rows = of_all.where(f"{WEIGHT} <> 0").selectExpr(*left, f"{apart} AS {WEIGHT}")
        return self.parts(rows.withColumn(WEIGHT, rows[WEIGHT].cast("bigint")), signed=True)

    def parts(self, rows: "DataFrame", *, signed: bool = False) -> "DataFrame":
        """
        The parts of the fields by key, from rows of values.
        """
        kinds = dict(rows.dtypes)
        found = [f"sum({WEIGHT}) AS {ROWS}" if signed else f"count(1) AS {ROWS}"]
        if signed:
            found.append(f"count(1) AS {CHANGED}")
        distinct = []
        for at, (recipe, fold) in enumerate(self._recipes()):
            words = {"v": f"_v{at}", "w": WEIGHT, "n": fold.most}
            if fold.kind is Kind.COUNT_DISTINCT:
                distinct.append((at, (recipe.signed if signed else recipe.of_all).format(**words)))
                continue
            found.append(f"{(recipe.signed if signed else recipe.of_all).format(**words)} AS _p{at}")
            if signed:
                found.append(f"{recipe.went.format(**words)} AS _g{at}")
        by = [f"`{name}`" for name in self.by]
        whole = rows.groupBy(*by).agg(*map(_expr, found))
        if not distinct:
            return whole
        parts = [whole]
        for at, times in distinct:
            of_value = rows.where(f"_v{at} IS NOT NULL").groupBy(*by, f"_v{at}").agg(_expr(f"{times} AS _times"))
            entry = f"struct(_v{at} AS key, _times AS value)"
            parts.append(of_value.where("_times <> 0").groupBy(*by).agg(_expr(f"collect_list({entry}) AS _p{at}")))
        together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
        types = {f"_p{at}": f"array<struct<key:{kinds[f'_v{at}']},value:bigint>>" for at, _ in distinct}
        return self._merged(together.selectExpr("*", f"false AS {IS_OLD}"), types, signed=signed)

    def merged(self, changes: "DataFrame", old: "DataFrame", places: Sequence[str]) -> "DataFrame":
        """
        The rows of the table after changes (:meth:`changed_parts`), from its `old` rows of the same keys.

        `places` are further columns of the old rows, null for a key that is new. A key that is gone has 0 rows in ROWS.
        The column `_again` says of a row that it cannot be known without reading the rows of its key.
        """
        kept = [f"`{name}`" for name in (*self.by, ROWS, *places)]
        for at, (name, (recipe, _)) in enumerate(zip(self.fields, self._recipes(), strict=True)):
            kept.append(f"{PARTS}.`{name}` AS _p{at}" if recipe.keeps else f"`{name}` AS _p{at}")
        before = old.selectExpr(*kept, f"true AS {IS_OLD}")
        types = dict(before.dtypes)
        together = changes.selectExpr("*", f"false AS {IS_OLD}").unionByName(before, allowMissingColumns=True)
        merged = self._merged(together, types, signed=True, places=places)
        return self.result(merged, *places, f"{ROWS} <> 0 AND ({self._lost(types)}) AS _again")

    def result(self, parts: "DataFrame", *more: str) -> "DataFrame":
        """
        The table's columns, from parts, and `more`.
        """
        shown, kept = [], []
        for at, (name, (recipe, _)) in enumerate(zip(self.fields, self._recipes(), strict=True)):
            shown.append(f"{recipe.result.format(p=f'_p{at}')} AS `{name}`")
            if recipe.keeps:
                kept.append(f"'{name}', _p{at}")
        hidden = [f"named_struct({', '.join(kept)}) AS {PARTS}"] if kept else []
        return parts.selectExpr(*(f"`{name}`" for name in self.by), *shown, ROWS, *hidden, *more)

    def floating(self, rows: "DataFrame") -> tuple[str, ...]:
        """
        The fields that add floating point numbers.
        """
        kinds = dict(self.values(rows).dtypes)
        named = enumerate(self.fields.items())
        return tuple(name for at, (name, fold) in named if fold.is_numeric and kinds[f"_v{at}"] in _FLOATING)

    def _recipes(self) -> Iterator[tuple[_Recipe, Fold]]:
        for fold in self.fields.values():
            yield _RECIPES[fold.kind], fold

    def _merged(
        self, parts: "DataFrame", types: Mapping[str, str], *, signed: bool, places: Sequence[str] = ()
    ) -> "DataFrame":
        found = [f"sum({ROWS}) AS {ROWS}"]
        if signed:
            found.append(f"sum({CHANGED}) AS {CHANGED}")
        for at, (recipe, fold) in enumerate(self._recipes()):
            part = f"_p{at}"
            words = {"p": part, "g": f"_g{at}", "n": fold.most}
            if fold.kind is Kind.COUNT_DISTINCT:
                words["nothing"] = nothing = f"CAST(array() AS {types[part]})"
                if not places:  # each value is there once
                    found.append(f"coalesce(sort_array(first({part}, true)), {nothing}) AS {part}")
                    continue
                for side, is_old in (("old", IS_OLD), ("new", f"NOT {IS_OLD}")):
                    entries = f"first(CASE WHEN {is_old} THEN {part} END, true)"
                    words[side] = _ENTRIES.format(f"coalesce({entries}, {nothing})")
            found.append(f"{recipe.merge.format(**words)} AS {part}")
            if signed and fold.kind is not Kind.COUNT_DISTINCT:
                found.append(f"{recipe.merge_went.format(**words)} AS _g{at}")
        found.extend(f"max(`{place}`) AS `{place}`" for place in places)
        return parts.groupBy(*(f"`{name}`" for name in self.by)).agg(*map(_expr, found))

    def _lost(self, types: Mapping[str, str]) -> str:
        """The condition that the rows of a key must be read again, over merged parts."""
        # More rows than there were have gone: the table is not what its stamp says.
        found = [f"{ROWS} < 0"]
        for at, (recipe, fold) in enumerate(self._recipes()):
            part = f"_p{at}"
            found.append(recipe.lost.format(p=part, g=f"_g{at}", n=fold.most))
            if fold.is_numeric and ("double" in types[part]):
                total = f"{part}.sum" if recipe.keeps else part
                lost = f"(isnan({total}) OR abs({total}) = double('infinity'))" if self.approximate else "true"
                found.append(f"_g{at} > 0 AND {lost}")
        return " OR ".join(f"coalesce({each}, false)" for each in found if each != "false")


def aggregate(
    table: str,
    *,
    name: str,
    by: str | Sequence[str] | Mapping[str, str] = (),
    fields: Mapping[str, Fold],
    where: str | None = None,
    approximate: bool = False,
    window: TimeWindows | None = None,
) -> Pipeline:
    """
    Declare `marts.<name>`: of the rows of `table` where `where` holds one row for each value of the columns `by`.

    `by` are columns, or a mapping of columns to the SQL expressions that they are. `fields` are `count`, `sum_`,
    `mean`, `min_`, `max_`, `count_distinct` (exact here) and `top`. A refresh reads the rows that came and went, and
    the table's rows of their keys. The rows of a key are read again where a minimum, a maximum or a top may have gone,
    and where something went from a sum or mean of floating point numbers; with `approximate` it is subtracted, and
    `fluvial table verify` may find more than 1e-9 where a sum has become much smaller.

    With a `window` there is one row for each value of the columns `by` and each window, whose beginning and end are the
    columns `window_start` and `window_end`; then `by` may be left out. Of sessions a refresh reads the rows of the keys
    that changed.

    The columns `_rows` and `_parts` of the table are what the next refresh goes on from.
    """
    what = f'aggregate("{table}", name="{name}")'
    steps = dict(by) if isinstance(by, Mapping) else {each: each for each in ((by,) if isinstance(by, str) else by)}
    if not steps and window is None:
        raise DeclarationError(f'{what} needs at least one column to group by, such as by="customer"')
    twice = sorted({WINDOW_START, WINDOW_END} & {column.lower() for column in steps}) if window is not None else []
    if twice:
        raise DeclarationError(f"{what} has two columns named {twice[0]}: its window adds one")
    if not fields:
        raise DeclarationError(f"{what} declares no field: give it at least one, such as fields={{'n': count()}}")
    check_folds(what, fields)
    seen = {column.lower() for column in steps} | ({WINDOW_START, WINDOW_END} if window is not None else set())
    for column, fold in fields.items():
        check_column(column, what, "field")
        if column.lower() in seen:
            raise DeclarationError(f"{what} has two columns named {column}: rename the field")
        seen.add(column.lower())
        if fold.kind not in _RECIPES:
            known = ", ".join(kind if kind not in {"sum", "min", "max"} else f"{kind}_" for kind in _RECIPES)
            raise DeclarationError(
                f"{what}: field {column}: {fold.kind} depends on the order of rows: take one of {known}, or write "
                "@pipeline(…, key=…)"
            )
        if fold.kind is Kind.TOP and (type(fold.most) is not int or not 1 <= fold.most <= TOP_MAX):
            raise DeclarationError(f"{what}: field {column}: top keeps from 1 to {TOP_MAX} values, not {fold.most!r}")
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise DeclarationError(f"{what}: where is {where!r}: write it as a line of SQL")
    of_window = {} if window is None else {each: each for each in (WINDOW_START, WINDOW_END)}
    aggregation = Aggregation(
        by=MappingProxyType(steps | of_window),
        fields=MappingProxyType(dict(fields)),
        where=where,
        approximate=approximate,
    )
    declare: Callable[[Callable[..., object]], Pipeline] = pipeline(
        name=name,
        inputs={table: tuple(steps.values())},
        key=tuple(steps),
        version=aggregation.version,
        windows={} if window is None else {table: window},
    )
    return replace(declare(aggregation), aggregation=aggregation)


def _expr(text: str) -> "Column":
    from pyspark.sql.functions import expr

    return expr(text)
