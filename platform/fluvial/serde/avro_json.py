"""
Avro values as plain JSON and back, the way `produce` reads and `consume` prints them.

Unions carry no type name (the first branch that fits is taken), bytes are base64, a decimal is a string of digits, a
timestamp, date or time is ISO 8601. What `render` gives, `convert` takes.
"""

import base64
import binascii
import datetime as dt
import math
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

Schema = Any
"""A schema as `fastavro.parse_schema` gives it: a name, a dict or a list of branches."""


class MismatchError(ValueError):
    """A JSON value does not fit its schema; the text starts with the path of the field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path or 'the value'}: {message}")


def render(value: Any) -> Any:
    """Return a decoded Avro value as what `json.dumps` takes."""
    rendered = value
    match value:
        case bytes() | bytearray():
            rendered = base64.b64encode(value).decode()
        case dt.datetime():
            rendered = value.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            rendered = value.isoformat()
        case Decimal() | uuid.UUID():
            rendered = str(value)
        case dict():
            rendered = {key: render(each) for key, each in value.items()}
        case list() | tuple():
            rendered = [render(each) for each in value]
        case float() if not math.isfinite(value):
            rendered = str(value)
    return rendered


def convert(schema: Schema, value: Any, named: Mapping[str, Schema] | None = None, path: str = "") -> Any:
    """
    Return a JSON value as the Python value that fastavro writes under `schema`.

    `named` holds the types that the schema refers to by name. Raises MismatchError naming the field.
    """
    named = dict(named or {})
    _collect(schema, named)
    return _convert(schema, value, named, path)


def named_types(schema: Schema) -> dict[str, Schema]:
    """Return the types that a schema defines, by their names."""
    named: dict[str, Schema] = {}
    _collect(schema, named)
    return named


def _collect(schema: Schema, named: dict[str, Schema]) -> None:
    match schema:
        case list():
            for branch in schema:
                _collect(branch, named)
        case dict():
            if "name" in schema:
                named[schema["name"]] = schema
            for field in schema.get("fields", ()):
                _collect(field["type"], named)
            for part in ("items", "values"):
                if part in schema:
                    _collect(schema[part], named)
            if isinstance(schema.get("type"), dict | list):
                _collect(schema["type"], named)


def _convert(schema: Schema, value: Any, named: Mapping[str, Schema], path: str) -> Any:
    if isinstance(schema, list):
        return _union(schema, value, named, path)
    if isinstance(schema, str):
        return _convert(named[schema], value, named, path) if schema in named else _primitive(schema, value, path)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _convert(kind, value, named, path)
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, value, path)
    if logical := _LOGICAL.get((schema.get("logicalType", ""), kind)):
        return logical(value, path)
    compound = _COMPOUND.get(kind)
    return compound(schema, value, named, path) if compound else _primitive(kind, value, path)


def _array(schema: Schema, value: Any, named: Mapping[str, Schema], path: str) -> list[Any]:
    _require(isinstance(value, list), path, "an array", value)
    return [_convert(schema["items"], each, named, f"{path}[{at}]") for at, each in enumerate(value)]


def _map(schema: Schema, value: Any, named: Mapping[str, Schema], path: str) -> dict[str, Any]:
    _require(isinstance(value, dict), path, "an object", value)
    return {key: _convert(schema["values"], each, named, f"{path}.{key}") for key, each in value.items()}


def _enum(schema: Schema, value: Any, named: Mapping[str, Schema], path: str) -> Any:
    _require(value in schema["symbols"], path, f"one of {', '.join(schema['symbols'])}", value)
    return value


def _fixed(schema: Schema, value: Any, named: Mapping[str, Schema], path: str) -> bytes:
    read = _bytes(value, path)
    _require(len(read) == schema["size"], path, f"{schema['size']} bytes in base64", value)
    return read


def _record(schema: Schema, value: Any, named: Mapping[str, Schema], path: str) -> dict[str, Any]:
    _require(isinstance(value, dict), path, "an object", value)
    names = [field["name"] for field in schema["fields"]]
    unknown = sorted(value.keys() - set(names))
    if unknown:
        raise MismatchError(_at(path, unknown[0]), f"the schema has no such field; it has {', '.join(names)}")
    read = {}
    for field in schema["fields"]:
        name = field["name"]
        if name in value:
            read[name] = _convert(field["type"], value[name], named, _at(path, name))
        elif "default" not in field:
            raise MismatchError(_at(path, name), "is missing, and the schema gives no default")
    return read


_COMPOUND: Mapping[str, Callable[[Schema, Any, Mapping[str, Schema], str], Any]] = {
    "record": _record,
    "error": _record,
    "array": _array,
    "map": _map,
    "enum": _enum,
    "fixed": _fixed,
}


def _union(branches: list[Schema], value: Any, named: Mapping[str, Schema], path: str) -> Any:
    if value is None and "null" in branches:
        return None
    refusals = []
    for branch in branches:
        if branch == "null":
            continue
        try:
            return _convert(branch, value, named, path)
        except MismatchError as error:
            refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    raise MismatchError(path, f"{value!r} fits no branch of its union")


def _primitive(kind: str, value: Any, path: str) -> Any:
    if kind == "bytes":
        return _bytes(value, path)
    fits, what = _PRIMITIVES[kind]
    _require(fits(value), path, what, value)
    return float(value) if kind in ("float", "double") else value


def _is_int(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("nan", "inf", "-inf")


_PRIMITIVES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "null": (lambda value: value is None, "null"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "int": (lambda value: _is_int(value, 31), "a whole number of 32 bits"),
    "long": (lambda value: _is_int(value, 63), "a whole number of 64 bits"),
    "float": (_is_number, "a number"),
    "double": (_is_number, "a number"),
    "string": (lambda value: isinstance(value, str), "a string"),
}


def _bytes(value: Any, path: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise MismatchError(path, f"{value!r} is not base64 text, which bytes are written as") from None


def _timestamp(value: Any, path: str) -> Any:
    if _is_int(value, 63):
        return value
    try:
        read = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise MismatchError(path, f"{value!r} is no ISO 8601 timestamp such as 2013-01-01T05:15:00Z") from None
    # Without a zone it is UTC: the same line means the same instant on every machine.
    return read if read.tzinfo else read.replace(tzinfo=dt.UTC)


def _local_timestamp(value: Any, path: str) -> Any:
    read = _timestamp(value, path)
    return read if isinstance(read, int) else read.replace(tzinfo=None)


def _date(value: Any, path: str) -> Any:
    try:
        return value if _is_int(value, 31) else dt.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise MismatchError(path, f"{value!r} is no ISO 8601 date such as 2013-01-01") from None


def _time(value: Any, path: str) -> Any:
    try:
        return value if _is_int(value, 63) else dt.time.fromisoformat(value)
    except (TypeError, ValueError):
        raise MismatchError(path, f"{value!r} is no ISO 8601 time such as 05:15:00") from None


def _decimal(schema: Schema, value: Any, path: str) -> Decimal:
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        read = Decimal(str(value))
    except (ValueError, InvalidOperation):
        raise MismatchError(path, f'{value!r} is no decimal such as "12.50"') from None
    _, digits, exponent = read.as_tuple()
    if not isinstance(exponent, int):
        raise MismatchError(path, f"{value!r} is not a finite decimal")
    scale, precision = schema.get("scale", 0), schema.get("precision")
    if -exponent > scale:
        raise MismatchError(path, f"{value!r} has {-exponent} decimal places, and the schema allows {scale}")
    if read and precision is not None and len(digits) + exponent + scale > precision:
        raise MismatchError(path, f"{value!r} does not fit decimal({precision},{scale})")
    return read


_LOGICAL: Mapping[tuple[str, str], Callable[[Any, str], Any]] = {
    ("timestamp-millis", "long"): _timestamp,
    ("timestamp-micros", "long"): _timestamp,
    ("local-timestamp-millis", "long"): _local_timestamp,
    ("local-timestamp-micros", "long"): _local_timestamp,
    ("date", "int"): _date,
    ("time-millis", "int"): _time,
    ("time-micros", "long"): _time,
}


def _require(fits: bool, path: str, what: str, value: Any) -> None:
    if not fits:
        raise MismatchError(path, f"{value!r} is not {what}")


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
