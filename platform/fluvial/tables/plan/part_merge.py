"""
Parts of an aggregate that are made and merged in this process: those of rows that came go into the table's rows of the
same keys.

A refresh of ten thousand keys then costs no job of Spark's but the one that reads the values of the changed rows. It is
done where Arrow makes the very values that Spark makes of the same: of whole numbers, texts, dates and instants, and of
sums of doubles and of short decimals. Where rows went, and of other types, Spark makes them
(:meth:`Aggregation.changed_parts`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fluvial.delta.row_places import KeyNumbers
from fluvial.tables.declare.aggregates import PARTS, ROWS, Aggregation
from fluvial.tables.declare.folds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

# Types that Arrow orders as Spark does; neither's texts are of a collation.
_ORDERED = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date", "timestamp"})
_SUMS = frozenset({"bigint", "double"})
_DECIMAL = re.compile(r"decimal\((\d+),\d+\)")
# Spark gives their sum ten digits more, and 64 bits hold 18.
_DIGITS_MAX = 8
# Far enough below what 64 bits hold.
_SUM_MAX = 2.0**62
_OWN = {Kind.COUNT: frozenset({"bigint"}), Kind.SUM: _SUMS, Kind.MIN: _ORDERED, Kind.MAX: _ORDERED}


class UnmergedError(Exception):
    """
    Parts cannot be merged here; the text says why.
    """


def can_merge(aggregation: Aggregation, kinds: Mapping[str, str]) -> bool:
    """
    Whether the parts of values (:meth:`Aggregation.values`) of these types of Spark's can be made and merged here.
    """
    known = {kind: _SUMS if kind in (Kind.SUM, Kind.MEAN) else _ORDERED for kind in _MERGES}
    return all(kinds[column] in _ORDERED for column in aggregation.by) and all(
        fold.kind is Kind.COUNT
        or kinds[f"_v{at}"] in known.get(fold.kind, ())
        or (fold.kind is Kind.SUM and _is_short_decimal(kinds[f"_v{at}"]))
        for at, fold in enumerate(aggregation.fields.values())
    )


def _is_short_decimal(kind: str) -> bool:
    found = _DECIMAL.fullmatch(kind)
    return found is not None and int(found[1]) <= _DIGITS_MAX


def can_merge_values(values: Mapping[str, Kind], key: Sequence[str], kinds: Mapping[str, str]) -> bool:
    """
    Whether rows by `key` of columns of these types can be merged, each of `values` with how it is added up.
    """
    return all(kinds[column] in _ORDERED for column in key) and all(
        kinds[column] in _OWN.get(kind, ()) for column, kind in values.items()
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

    `came` are the parts of these rows (:func:`make_parts`), `old` has for each of them the table's row
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


def make_parts(aggregation: Aggregation, values: "pa.Table") -> "pa.Table":
    """
    The parts of rows with these values, a row a key: the columns of the key, `_p0` and so on, and ROWS.

    Raises :class:`UnmergedError` for a sum that may be too large.
    """
    import pyarrow as pa

    by = [*aggregation.by]
    keys = values.select(by).group_by(by).aggregate([]).select(by).combine_chunks()
    groups = Groups(numbers=KeyNumbers(keys).of(values.select(by)), count=keys.num_rows)
    columns = {name: _column(keys, name) for name in by}
    for at, fold in enumerate(aggregation.fields.values()):
        columns[f"_p{at}"] = _PARTS[fold.kind](_column(values, f"_v{at}"), groups)
    columns[ROWS] = pa.array(np.bincount(groups.numbers, minlength=groups.count))
    return pa.table(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """
    The group of each row, of so many.
    """

    numbers: NDArray[np.int64]
    count: int


def _counted(values: "pa.Array", groups: Groups) -> "pa.Array":
    import pyarrow as pa

    there = values.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.bincount(groups.numbers[there], minlength=groups.count))


def _summed(values: "pa.Array", groups: Groups) -> "pa.Array":
    import pyarrow as pa

    if pa.types.is_decimal(values.type):
        return _summed_decimals(values, groups)
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_integer(values.type) and np.abs(numbers.astype(np.float64)).sum() >= _SUM_MAX:
        raise UnmergedError("a sum may be too large")
    sums = np.zeros(groups.count, numbers.dtype)
    np.add.at(sums, groups.numbers, numbers)
    return pa.array(sums)


def _summed_decimals(values: "pa.Array", groups: Groups) -> "pa.Array":
    """The sums of decimals of few digits, whose lower 64 bits are the whole number that they are without a point."""
    import pyarrow as pa

    filled = values.fill_null(0)
    numbers = np.frombuffer(filled.buffers()[1], np.int64)[::2][filled.offset : filled.offset + len(filled)]
    sums = np.zeros((groups.count, 2), np.int64)
    np.add.at(sums[:, 0], groups.numbers, numbers)
    sums[:, 1] = sums[:, 0] >> 63
    kind = pa.decimal128(_DIGITS_MAX + 10, values.type.scale)
    return pa.Array.from_buffers(kind, groups.count, [None, pa.py_buffer(sums.tobytes())])


def _mean_parts(values: "pa.Array", groups: Groups) -> "pa.Array":
    import pyarrow as pa

    return pa.StructArray.from_arrays([_summed(values, groups), _counted(values, groups)], names=["sum", "count"])


def _ranked(values: "pa.Array") -> "tuple[pa.Array, NDArray[np.int64]]":
    """The different values, ascending, and the number of each value among them."""
    import pyarrow.compute as pc

    coded = values.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return coded.dictionary.take(order), rank[coded.indices.to_numpy()]


def _extreme(values: "pa.Array", groups: Groups, *, least: bool) -> "pa.Array":
    import pyarrow as pa

    numbers = groups.numbers[values.is_valid().to_numpy(zero_copy_only=False)]
    different, ranks = _ranked(values.drop_null())
    found = np.full(groups.count, len(different) if least else -1, np.int64)
    (np.minimum if least else np.maximum).at(found, numbers, ranks)
    return different.take(pa.array(found, mask=(found < 0) | (found == len(different))))


def _entries(values: "pa.Array", groups: Groups) -> "pa.Array":
    import pyarrow as pa

    numbers = groups.numbers[values.is_valid().to_numpy(zero_copy_only=False)]
    different, ranks = _ranked(values.drop_null())
    width = max(len(different), 1)
    places, counts = np.unique(numbers * width + ranks, return_counts=True)
    entries = pa.StructArray.from_arrays(
        [different.take(pa.array(places % width)), pa.array(counts)], names=["key", "value"]
    )
    ends = np.searchsorted(places, np.arange(groups.count + 1) * width).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), entries)


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
    different, ranks = _ranked(keys)
    values = max(len(different), 1)
    places = np.concatenate(rows) * values + ranks
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
_PARTS: Mapping[Kind, Callable[["pa.Array", Groups], "pa.Array"]] = {
    Kind.COUNT: _counted,
    Kind.SUM: _summed,
    Kind.MEAN: _mean_parts,
    Kind.MIN: partial(_extreme, least=True),
    Kind.MAX: partial(_extreme, least=False),
    Kind.COUNT_DISTINCT: _entries,
}
