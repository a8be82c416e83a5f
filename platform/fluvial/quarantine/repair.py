"""
Repairing records: what can still be read of them, and how they become values of their topic's schema again.

A repair is given what can be read of a record and returns the value that it is to have. `settings` sets fields, `lines`
looks the record up in a file, `function` calls Python.
"""

import importlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.errors import FluvialError
from fluvial.modules import look_in_current_folder
from fluvial.quarantine.records import Quarantined
from fluvial.registry.errors import RegistryError
from fluvial.serde.avro_json import render
from fluvial.serde.encoding import PREFIX, Encoder, EncodingError

if TYPE_CHECKING:
    from fluvial.registry.client import RegistryClient

FIELDS_MAX = 1_000
NOT_FOUND = 404  # the hundreds of the registry's error codes for what is not there


class RepairError(FluvialError):
    """A record cannot be repaired as it was asked for; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """
    What can be read of a record.

    `value` has what decodes, JSON as `fluvial topic consume` prints it: of a record that breaks off, the fields before.
    `is_whole` says that nothing is missing, so that the bytes can go back as they are.
    """

    record: Quarantined
    schema_id: int | None
    value: Any
    is_whole: bool


Repair = Callable[[Seen], Any]
"""Returns the value a record is to have: JSON, or bytes as they are; None drops the record."""


class Reader:
    """Reads damaged values with the schemas that they name, or with the latest of their topic."""

    def __init__(self, registry: "RegistryClient") -> None:
        self._registry = registry
        self._schemas: dict[int | str, Mapping[str, Any] | None] = {}

    def read(self, record: Quarantined) -> Seen:
        """Return what can be read; raises RegistryError when the registry does not answer."""
        value = record.value
        if value is None:
            return Seen(record=record, schema_id=None, value=None, is_whole=False)
        if len(value) < PREFIX.size or value[0] != 0:
            return Seen(record=record, schema_id=None, value=_text_of(value), is_whole=False)
        _, schema_id = PREFIX.unpack_from(value)
        known = self._schema(schema_id)
        schema = known or self._schema(f"{record.topic}-value")
        if schema is None:
            return Seen(record=record, schema_id=schema_id, value=_text_of(value), is_whole=False)
        decoded, is_whole = partly(schema, value[PREFIX.size :])
        return Seen(record=record, schema_id=schema_id, value=decoded, is_whole=is_whole and known is not None)

    def _schema(self, name: int | str) -> Mapping[str, Any] | None:
        if name not in self._schemas:
            try:
                text = (
                    self._registry.schema_by_id(name) if isinstance(name, int) else self._registry.latest(name).schema
                )
                parsed = json.loads(text)
            except (RegistryError, ValueError) as error:
                if isinstance(error, RegistryError) and (error.code or 0) // 100 != NOT_FOUND:
                    raise
                parsed = None
            self._schemas[name] = parsed if isinstance(parsed, dict) else None if parsed is None else {"type": parsed}
        return self._schemas[name]


def partly(schema: Mapping[str, Any], data: bytes) -> tuple[Any, bool]:
    """Return as much of an Avro datum as decodes, and whether that is all of it; of a record, its first fields."""
    try:
        value, end = _decoded(schema, data)
        if end == len(data):
            return value, True
    except Exception:  # noqa: S110 damaged bytes raise whatever the decoder happened to do with them
        pass
    fields = schema.get("fields") if schema.get("type") == "record" else None
    if not isinstance(fields, list) or len(fields) > FIELDS_MAX:
        return _text_of(data), False
    low, high = 0, len(fields)
    best: Any = {}
    while low < high:
        middle = (low + high + 1) // 2
        try:
            best_here, _ = _decoded({**schema, "fields": fields[:middle]}, data)
        except Exception:
            high = middle - 1
        else:
            low, best = middle, best_here
    return best, False


def _decoded(schema: Mapping[str, Any], data: bytes) -> tuple[Any, int]:
    import fastavro

    stream = io.BytesIO(data)
    return render(fastavro.schemaless_reader(stream, fastavro.parse_schema(dict(schema)), None)), stream.tell()


def _text_of(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def settings(words: Mapping[str, str]) -> Repair:
    """A repair that sets fields; `a.b` is field b within a, a value is JSON where it can be read as such."""
    values = {name: _json_or_text(text) for name, text in words.items()}

    def repair(seen: Seen) -> Any:
        value = json.loads(json.dumps(seen.value)) if isinstance(seen.value, dict) else {}
        for path, content in values.items():
            *outer, name = path.split(".")
            within = value
            for each in outer:
                within = within.setdefault(each, {})
                if not isinstance(within, dict):
                    raise RepairError(f"{seen.record.position}: --set {path}: {each} is no record")
            within[name] = content
        return value

    return repair


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def lines(path: Path) -> Repair:
    """
    A repair that looks records up in a file of JSON lines, {"partition": 0, "offset": 17, "value": {…}}.

    Partition and offset are where the record would have been; `"value": null` drops it. Raises RepairError.
    """
    known: dict[tuple[int, int], Any] = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                known[row["partition"], row["offset"]] = row["value"]
            except (ValueError, KeyError, TypeError) as error:
                raise RepairError(
                    f'{path} line {number}: no repaired record such as {{"partition": 0, "offset": 17, "value": {{}}}}'
                    f" ({error!r})"
                ) from error
    except OSError as error:
        raise RepairError(f"{path}: {error.strerror}") from error

    def repair(seen: Seen) -> Any:
        place = (seen.record.partition, seen.record.offset)
        return known.get(place, seen.value)

    return repair


def function(name: str) -> Repair:
    """A repair that calls `module:function` with what is seen; raises RepairError where there is none."""
    module, colon, attribute = name.partition(":")
    look_in_current_folder()
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise RepairError(f"{name}: {error}") from error
    if not callable(found):
        raise RepairError(f"{name}: name a function as module:function")

    def repair(seen: Seen) -> Any:
        try:
            return found(_as_given(seen))
        except Exception as error:
            raise RepairError(f"{seen.record.position}: {name} failed: {error!r}") from error

    return repair


def _as_given(seen: Seen) -> dict[str, Any]:
    """What a user's function is called with."""
    record = seen.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": seen.value,
        "value_bytes": record.value,
        "headers": list(record.headers),
        "reason": record.reason,
        "part": record.part,
        "field": record.field,
    }


class Repairing:
    """Turns records in quarantine into records of their topic, or says why that cannot be."""

    def __init__(self, registry: "RegistryClient", repair: Repair | None) -> None:
        self._registry = registry
        self._reader = Reader(registry)
        self._repair = repair
        self._encoders: dict[str, Encoder] = {}

    def repaired(self, record: Quarantined) -> Quarantined | None:
        """Return the record as it may go back, None when it is to be dropped; raises RepairError."""
        seen = self._reader.read(record)
        value = seen.value if self._repair is None else self._repair(seen)
        if value is None and self._repair is not None:
            return None
        if isinstance(value, bytes):
            return replace(record, value=value)
        if value == seen.value:
            if seen.is_whole and record.part != "key":
                return record
            raise RepairError(
                f"{record.position} is still bad: {record.reason}; repair it with --set, --file or --call, "
                "or skip it with --leave-out"
            )
        try:
            return replace(record, value=self._encoder(record.topic).encode(value))
        except EncodingError as error:
            raise RepairError(f"{record.position}: the repaired value {error}") from error

    def _encoder(self, topic: str) -> Encoder:
        if topic not in self._encoders:
            self._encoders[topic] = Encoder.of(self._registry, topic=topic, subject=None, schema=None)
        return self._encoders[topic]
