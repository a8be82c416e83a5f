"""The Avro record of a Parquet file's rows, as a contract to begin with."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.registry.generate.spark_types import GenerateError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def record_of_parquet(path: Path, name: str, *, key: str | None = None) -> dict[str, Any]:
    """
    The record schema, in Avro's JSON, of the rows of a Parquet file; `key` is the column that is the record key.

    A column is required if the file says that it holds no null, else optional with a default of null. A timestamp
    with a time zone is an instant, one without a local time. Raises GenerateError for a file that is none, a column
    that Avro has no type or no name for, and a key that is no required column of strings or whole numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise GenerateError(f"{path} is not a Parquet file that can be read: {str(error).splitlines()[0]}") from error
    with file:
        nulls = _columns_with_nulls(file)
        fields = [_field(column, name, column.name in nulls) for column in file.schema_arrow]
    schema: dict[str, Any] = {"type": "record", "name": name}
    if key is not None:
        _check_key(key, {field["name"]: field for field in fields}, path)
        schema["fluvial.key"] = key
    return {**schema, "fields": fields}


def _columns_with_nulls(file: "pq.ParquetFile") -> set[str]:
    """The top-level columns that hold a null, or of which the file does not say that they hold none."""
    found = set()
    for group in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(group)
        for at in range(row_group.num_columns):
            column = row_group.column(at)
            statistics = column.statistics
            # Below a list or a record the count is of values within.
            if "." in column.path_in_schema or statistics is None or statistics.null_count != 0:
                found.add(column.path_in_schema.partition(".")[0])
    return found


def _check_key(key: str, fields: dict[str, dict[str, Any]], path: Path) -> None:
    if key not in fields:
        raise GenerateError(f"{path} has no column {key!r} for the key; its columns are {', '.join(fields)}")
    if fields[key]["type"] not in ("string", "int", "long"):
        raise GenerateError(f"the column {key!r} is no key: a key is a string or a whole number, and never null")


def _field(column: "pa.Field", above: str, has_nulls: bool) -> dict[str, Any]:
    if not _NAME.fullmatch(column.name):
        raise GenerateError(
            f"the column {column.name!r} has no name that Avro takes (letters, digits and _, no digit first): rename it"
        )
    kind = _type(column.type, f"{above}_{column.name}", column.name)
    if column.nullable and has_nulls and kind != "null":
        return {"name": column.name, "type": ["null", kind], "default": None}
    return {"name": column.name, "type": kind}


def _type(kind: "pa.DataType", name: str, column: str) -> Any:  # noqa: PLR0911, PLR0912 (one a type)
    """The Avro type of a column's type; records within it are named after `name`."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _type(kind.value_type, name, column)
    if types.is_null(kind):
        return "null"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) and not types.is_uint64(kind):
        return "long" if types.is_int64(kind) or types.is_uint32(kind) else "int"
    if types.is_float16(kind) or types.is_float32(kind):
        return "float"
    if types.is_float64(kind):
        return "double"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind):
        unit = "millis" if kind.unit in ("s", "ms") else "micros"
        return {"type": "long", "logicalType": f"{'local-' if kind.tz is None else ''}timestamp-{unit}"}
    if types.is_time(kind):
        is_millis = kind.unit in ("s", "ms")
        return {"type": "int" if is_millis else "long", "logicalType": f"time-{'millis' if is_millis else 'micros'}"}
    if types.is_struct(kind):
        return {"type": "record", "name": name, "fields": [_field(each, name, True) for each in kind]}
    if types.is_map(kind) and _type(kind.key_type, name, column) == "string":
        return {"type": "map", "values": _element(kind.item_field, name, column)}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "items": _element(kind.value_field, name, column)}
    raise GenerateError(f"the column {column!r} is of the type {kind}, which has no counterpart in Avro: cast it")


def _element(field: "pa.Field", name: str, column: str) -> Any:
    kind = _type(field.type, name, column)
    return ["null", kind] if field.nullable and kind != "null" else kind
