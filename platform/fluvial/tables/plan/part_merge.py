"""
Merging parts of an aggregate in this process: those of rows that came go into the table's rows of the same keys.

A refresh of ten thousand keys then costs no job of Spark's but the one that makes the parts of the changed rows. It is
done where Arrow makes the very values that Spark makes of the same: of whole numbers, texts, dates and instants, and of
sums of doubles. Where rows went, and of other types, Spark merges (:meth:`Aggregation.merged`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fluvial.tables.declare.aggregates import CHANGED, PARTS, ROWS, Aggregation
from fluvial.tables.declare.folds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

# Types that Arrow orders as Spark does; neither's texts are of a collation.
_ORDERED = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date", "timestamp"})
_SUMS = frozenset({"bigint", "double"})
_MERGED = {
    Kind.COUNT: frozenset({"bigint"}),
    Kind.SUM: _SUMS,
    Kind.MEAN: frozenset(f"struct<sum:{each},count:bigint>" for each in _SUMS),
    Kind.MIN: _ORDERED,
    Kind.MAX: _ORDERED,
    Kind.COUNT_DISTINCT: frozenset(f"array<struct<key:{each},value:bigint>>" for each in _ORDERED),
}


class UnmergedError(Exception):
    """
    Parts cannot be merged here; the text says why.
    """


def can_merge(aggregation: Aggregation, kinds: Mapping[str, str]) -> bool:
    """
    Whether parts with columns of these types of Spark's can be merged here.
    """
    parts = {f"_p{at}": fold.kind for at, fold in enumerate(aggregation.fields.values())}
    return can_merge_values(parts, tuple(aggregation.by), kinds)


def can_merge_values(values: Mapping[str, Kind], key: Sequence[str], kinds: Mapping[str, str]) -> bool:
    """
    The same of `values`, each column with how it is added up, of rows by `key`.
    """
    return all(kinds[column] in _ORDERED for column in key) and all(
        kinds[column] in _MERGED.get(kind, ()) for column, kind in values.items()
    )


def merge_values(
    values: Mapping[str, Kind], key: Sequence[str], came: "pa.Table", old: "pa.Table", schema: "pa.Schema"
) -> "pa.Table":
    """
    Do what :func:`merge_parts` does with rows whose columns are the parts themselves, each added up as `values` says.
    """
    import pyarrow as pa

    try:
        columns = {name: _column(came, name) for name in key}
        columns |= {name: _MERGES[kind](_column(came, name), _column(old, name)) for name, kind in values.items()}
        return pa.Table.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnmergedError(str(error)) from error


def merge_parts(aggregation: Aggregation, came: "pa.Table", old: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """
    The table's rows of some keys, in the columns of its `schema`, after rows came to them.

    `came` are the parts of these rows (:meth:`Aggregation.changed_parts`), `old` has for each of them the table's row
    of that key, null where there is none. Raises :class:`UnmergedError` for a number that is too large.
    """
    import pyarrow as pa

    columns: dict[str, pa.Array] = {name: _column(came, name) for name in aggregation.by}
    kept: dict[str, pa.Array] = {}
    before = dict(_old_parts(aggregation, old))
    try:
        columns[ROWS] = _added(_column(came, ROWS), _column(old, ROWS))
        for at, (name, fold) in enumerate(aggregation.fields.items()):
            part = _MERGES[fold.kind](_column(came, f"_p{at}"), before[name])
            columns[name] = _RESULTS.get(fold.kind, lambda part: part)(part)
            if aggregation.keeps(name):
                kept[name] = part
        if kept:
            columns[PARTS] = pa.StructArray.from_arrays([*kept.values()], names=[*kept]).cast(schema.field(PARTS).type)
        return pa.Table.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnmergedError(str(error)) from error


def changed_rows(came: "pa.Table") -> int:
    """
    Of how many rows these are the parts.
    """
    import pyarrow.compute as pc

    return int(pc.sum(came[CHANGED]).as_py() or 0)


def _old_parts(aggregation: Aggregation, old: "pa.Table") -> "Iterator[tuple[str, pa.Array]]":
    import pyarrow.compute as pc

    for name in aggregation.fields:
        yield name, pc.struct_field(_column(old, PARTS), name) if aggregation.keeps(name) else _column(old, name)


def _column(rows: "pa.Table", name: str) -> "pa.Array":
    import pyarrow as pa

    column = rows[name].combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _added(came: "pa.Array", old: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    # The sum of nothing but nulls is null.
    return pc.coalesce(pc.add_checked(came, pc.fill_null(old, 0)), old)


def _mean_added(came: "pa.Array", old: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    names = ["sum", "count"]
    return pa.StructArray.from_arrays(
        [_added(pc.struct_field(came, name), pc.struct_field(old, name)) for name in names], names=names
    )


def _mean(part: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    count = pc.struct_field(part, "count").cast(pa.float64(), safe=False)
    total = pc.struct_field(part, "sum").cast(pa.float64(), safe=False)
    return pc.if_else(pc.greater(count, 0.0), pc.divide(total, count), None)


def _least(came: "pa.Array", old: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    return pc.coalesce(pc.if_else(pc.less(came, old), came, old), came, old)


def _greatest(came: "pa.Array", old: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    return pc.coalesce(pc.if_else(pc.greater(came, old), came, old), came, old)


def _number_of(part: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    return pc.list_value_length(part)


def _entries_added(came: "pa.Array", old: "pa.Array") -> "pa.Array":
    """
    Of each row the different values, ascending, with how often they are there.

    Values are numbered in their order, so that (row, value) is a number: those of all old entries ascend, and the few
    that came are looked for among them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = [pc.list_parent_indices(each).to_numpy().astype(np.int64) for each in (old, came)]
    flat = [each.flatten() for each in (old, came)]
    keys = pa.concat_arrays([each.field("key") for each in flat])
    counts, more = (each.field("value").to_numpy().astype(np.int64) for each in flat)
    coded = keys.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    values = max(len(order), 1)
    places = np.concatenate(rows) * values + rank[coded.indices.to_numpy()]
    there, new = places[: len(counts)], places[len(counts) :]
    if (np.diff(there) <= 0).any() or (np.diff(new) <= 0).any():
        raise UnmergedError("the values of a key are not in their order")
    slots = np.searchsorted(there, new)
    known = np.zeros(len(new), bool)
    inside = slots < len(there)
    known[inside] = there[slots[inside]] == new[inside]
    counts = counts.copy()
    counts[slots[known]] += more[known]
    at = slots[~known]
    places = np.insert(there, at, new[~known])
    taken = np.insert(np.arange(len(there)), at, len(there) + np.flatnonzero(~known))
    entries = pa.StructArray.from_arrays(
        [keys.take(pa.array(taken)), pa.array(np.insert(counts, at, more[~known]))], names=["key", "value"]
    )
    ends = np.searchsorted(places, np.arange(len(came) + 1) * values).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), entries)


_Merge = Callable[["pa.Array", "pa.Array"], "pa.Array"]
_MERGES: Mapping[Kind, _Merge] = {
    Kind.COUNT: _added,
    Kind.SUM: _added,
    Kind.MEAN: _mean_added,
    Kind.MIN: _least,
    Kind.MAX: _greatest,
    Kind.COUNT_DISTINCT: _entries_added,
}
_RESULTS: Mapping[Kind, Callable[[Any], Any]] = {Kind.MEAN: _mean, Kind.COUNT_DISTINCT: _number_of}
