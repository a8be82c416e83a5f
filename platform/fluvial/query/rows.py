"""
Arrow's values as the Python values that Spark gives for them, which is what answers are written from.

An instant is a datetime in UTC without a zone, a struct a tuple that names its fields, a map a dict.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Columns = list[tuple[str, str]]
"""Names and Spark's names of types, of which the simple ones are exact and others at least tell instants apart."""


_SIMPLE = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "date32[day]": "date",
    "null": "void",
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
    "duration[us]": "interval day to second",
}
"""Spark's names by Arrow's, where the two differ."""


class Struct(tuple[Any, ...]):
    """
    The fields of a struct, in their order; `__fields__` are their names, as in PySpark's Row.
    """

    __fields__: list[str]


def columns_of(schema: "pa.Schema") -> Columns:
    """
    The columns of an answer.
    """
    return [(field.name, type_name(field.type)) for field in schema]


def type_name(kind: "pa.DataType") -> str:
    """
    What Spark calls a type of Arrow's.
    """
    from pyarrow import types

    if types.is_struct(kind):
        name = f"struct<{','.join(f'{each.name}:{type_name(each.type)}' for each in kind)}>"
    elif types.is_map(kind):
        name = f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    elif types.is_list(kind) or types.is_large_list(kind):
        name = f"array<{type_name(kind.value_type)}>"
    elif types.is_timestamp(kind):
        name = "timestamp" if kind.tz else "timestamp_ntz"
    elif types.is_decimal(kind):
        name = f"decimal({kind.precision},{kind.scale})"
    else:
        name = _SIMPLE.get(str(kind), str(kind))
    return name


def rows_of(batches: "Iterable[pa.RecordBatch]") -> Iterator[Sequence[Any]]:
    """
    The rows of batches.
    """
    for batch in batches:
        yield from zip(*map(_values, batch.columns), strict=True) if batch.num_columns else ((),) * batch.num_rows


def _values(column: "pa.Array") -> list[Any]:
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_timestamp(kind):
        # Without its zone an instant is the time in UTC.
        return list(column.cast(pa.timestamp("us", kind.tz)).view(pa.timestamp("us")).to_pylist())
    if types.is_struct(kind):
        names = [field.name for field in kind]
        fields = zip(*map(_values, column.flatten()), strict=True) if names else ((),) * len(column)
        return [_struct(names, each) if valid else None for each, valid in zip(fields, _valid(column), strict=True)]
    if types.is_map(kind):
        whole = _values_of_lists(column, [(key, value) for key, value in _pairs(column)])
        return [None if each is None else dict(each) for each in whole]
    if types.is_list(kind) or types.is_large_list(kind):
        return _values_of_lists(column, _values(column.values))
    return list(column.to_pylist())


def _pairs(column: "pa.MapArray") -> Iterable[tuple[Any, Any]]:
    return zip(map(_key, _values(column.keys)), _values(column.items), strict=True)


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _values_of_lists(column: "pa.Array", values: list[Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    spans = zip(offsets, offsets[1:], _valid(column), strict=False)
    return [values[start:end] if valid else None for start, end, valid in spans]


def _valid(column: "pa.Array") -> list[bool]:
    return list(column.is_valid().to_pylist())


def _struct(names: list[str], values: tuple[Any, ...]) -> Struct:
    struct = Struct(values)
    struct.__fields__ = names
    return struct
