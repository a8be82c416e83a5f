"""
Answers that say nothing but an error, in the layout of any message.

Many answers have no error of their own: each entry of the request is answered by an entry with one. An answer without
entries would tell a client nothing, so what the request asked for is mirrored, every entry with the error.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from log_broker.errors import ErrorCode
from log_broker.wire.messages import Values, shape_of

_ERROR = "error_code"
_MESSAGE = "error_message"
# What Kafka has in an answer that is only an error, where the layout names no default.
_UNKNOWN: Mapping[tuple[str, str], Any] = {
    ("DeleteRecordsPartitionResult", "low_watermark"): -1,
    ("InitProducerIdResponse", "producer_epoch"): -1,
    ("DescribeClientQuotasResponse", "entries"): None,
}
# Answers that name their entries beside an error of their own.
_NAMES_ALL = frozenset({"ElectLeadersResponse"})
_ZEROS = {"string": "", "bytes": b"", "uuid": None, "bool": False}


def refusal(description: type[Any], request: Any, error: ErrorCode, message: str) -> Values:
    """Return the values of an answer of this description; `request` may be None where it could not be read."""
    values = _blank(description)
    has_own = _put_error(values, error, message)
    if request is not None and (not has_own or description.__name__ in _NAMES_ALL):
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


@dataclass(frozen=True, slots=True)
class _TopicOfDirectories:
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _AlteredUser:
    user: str


def _topics_of_directories(request: Any) -> tuple[_TopicOfDirectories, ...]:
    return tuple(_TopicOfDirectories(topic.name, topic.partitions) for each in request.dirs for topic in each.topics)


def _altered_users(request: Any) -> tuple[_AlteredUser, ...]:
    return tuple(map(_AlteredUser, dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))))


# Requests whose arrays do not have the form of those that answer them.
_ENTRIES: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "AlterReplicaLogDirsRequest": _topics_of_directories,
    "AlterUserScramCredentialsRequest": _altered_users,
}


def _answered_array(request: Any, name: str) -> tuple[Any, ...]:
    """Return the request's array of that name, else the first one that is not empty."""
    entries_of = _ENTRIES.get(type(request).__name__)
    if entries_of is not None:
        return entries_of(request)
    arrays = {field.name: getattr(request, field.name) for field in fields(request)}
    found = {key: value for key, value in arrays.items() if isinstance(value, tuple) and value}
    return found.get(name) or next(iter(found.values()), ())


def _mirrored(description: type[Any], entry: Any, error: ErrorCode, message: str) -> dict[str, Any]:
    values = _blank(description)
    _put_error(values, error, message)
    if isinstance(entry, str | int):
        first = next(name for name in values if name not in (_ERROR, _MESSAGE))
        return {**values, first: entry}
    for field in fields(description):
        # What has a default is what has become of it, and not its name.
        if field.name in values and field.default is MISSING and hasattr(entry, field.name):
            values[field.name] = _copied(getattr(entry, field.name))
    values.update(_mirrored_arrays(description, entry, error, message))
    return values


def _copied(value: Any) -> Any:
    """Return a part of a request as values of an answer."""
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return {each.name: _copied(getattr(value, each.name)) for each in fields(value)} if is_dataclass(value) else value


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
    name = description.__name__
    return {
        field.name: _UNKNOWN[name, field.name] if (name, field.name) in _UNKNOWN else _blank_value(field)
        for field in fields(description)
        if "tag" not in field.metadata
    }


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
