"""
Answers that say nothing but an error, in the layout of any message.

Many answers have no error of their own: each entry of the request is answered by an entry with one. An answer without
entries would tell a client nothing, so what the request asked for is mirrored, every entry with the error.
"""

from dataclasses import Field, fields
from typing import Any

from log_broker.errors import ErrorCode
from log_broker.wire.messages import Values, shape_of

_ERROR = "error_code"
_MESSAGE = "error_message"
_ZEROS = {"string": "", "bytes": b"", "uuid": None, "bool": False}


def refusal(description: type[Any], request: Any, error: ErrorCode, message: str) -> Values:
    """Return the values of an answer of this description; `request` may be None where it could not be read."""
    values = _blank(description)
    if not _put_error(values, error, message) and request is not None:
        values.update(_mirrored_arrays(description, request, error, message))
    return values


def _put_error(values: dict[str, Any], error: ErrorCode, message: str) -> bool:
    if _ERROR not in values:
        return False
    values[_ERROR] = error
    if _MESSAGE in values:
        values[_MESSAGE] = message
    return True


def _mirrored_arrays(description: type[Any], request: Any, error: ErrorCode, message: str) -> dict[str, Any]:
    """Fill the arrays whose entries carry an error from the array of the request that they answer."""
    arrays = {}
    for field in fields(description):
        shape = shape_of(field.type)
        if not shape.is_array or shape.description is None or not _carries_error(shape.description):
            continue
        entries = _answered_array(request, field.name)
        arrays[field.name] = [_mirrored(shape.description, entry, error, message) for entry in entries]
    return arrays


def _answered_array(request: Any, name: str) -> tuple[Any, ...]:
    """Return the request's array of that name, else the first one that is not empty."""
    arrays = {field.name: getattr(request, field.name) for field in fields(request)}
    found = {key: value for key, value in arrays.items() if isinstance(value, tuple) and value}
    return found.get(name) or next(iter(found.values()), ())


def _mirrored(description: type[Any], entry: Any, error: ErrorCode, message: str) -> dict[str, Any]:
    values = _blank(description)
    _put_error(values, error, message)
    if isinstance(entry, str | int):
        first = next(name for name in values if name not in (_ERROR, _MESSAGE))
        return {**values, first: entry}
    for name in values:
        if name not in (_ERROR, _MESSAGE) and hasattr(entry, name) and not isinstance(values[name], tuple):
            values[name] = getattr(entry, name)
    values.update(_mirrored_arrays(description, entry, error, message))
    return values


def _carries_error(description: type[Any]) -> bool:
    for field in fields(description):
        inner = shape_of(field.type).description
        if field.name == _ERROR or (inner is not None and _carries_error(inner)):
            return True
    return False


def refused_entries(description: type[Any], request: Any, error: ErrorCode, message: str) -> Values:
    """Return the arrays of an answer in which every entry of the request is answered by an error."""
    return _mirrored_arrays(description, request, error, message)


def _blank(description: type[Any]) -> dict[str, Any]:
    """Return what says nothing: defaults, zeros, empty strings and empty arrays."""
    return {field.name: _blank_value(field) for field in fields(description) if "tag" not in field.metadata}


def _blank_value(field: "Field[Any]") -> Any:
    shape = shape_of(field.type)
    if isinstance(field.default, int | str):
        return field.default
    if shape.is_array:
        return ()
    if shape.nullable:
        return None
    if shape.description is not None:
        return _blank(shape.description)
    return _ZEROS.get(field.metadata["kafka_type"], 0)
