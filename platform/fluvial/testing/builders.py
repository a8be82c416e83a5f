"""
Events that a contract allows, made without chance: the same call gives the same events.

    events("schemas/shop/orders.avsc", 3, customer="ada", amount=lambda number: 10.0 * number)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from uuid import UUID

from fluvial.errors import FluvialError
from fluvial.registry.contracts import Contract

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of the first event; each later one is a minute on."""
STEP = timedelta(minutes=1)

Schema = Contract | Mapping[str, Any] | Path | str

_DAY_MICROS = 86_400_000_000


class BuildError(FluvialError):
    """No event can be made as it was asked for."""


def events(schema: Schema, n: int, /, **overrides: Any) -> list[dict[str, Any]]:
    """
    Return `n` events of a record schema, each field filled by its type and the event's number, counted from 0.

    `schema` is a contract, a parsed Avro schema, its text, or the path of its file. Strings are `<field>-<number>`,
    numbers the number itself, times a minute apart in UTC, enums one symbol after the other; a union takes its first
    branch that is not null. An override is a value, a function of the number, or an iterator that gives a value for
    each event. Raises BuildError for an override that no field has, an iterator that ends early, a schema that is no
    record.
    """
    parsed = _parsed(schema)
    if parsed.get("type") != "record":
        raise BuildError(f"events are records, and this schema is {parsed.get('type')}: give the schema of a record")
    fields = [field["name"] for field in parsed["fields"]]
    for name in overrides:
        if name not in fields:
            near = get_close_matches(name, fields, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(fields)}"
            raise BuildError(f"{parsed['name']} has no field {name}; {meant}")
    return [_Builder(number).event(parsed, overrides) for number in range(n)]


def _parsed(schema: Schema) -> Mapping[str, Any]:
    if isinstance(schema, Contract):
        return schema.schema
    if isinstance(schema, Mapping):
        return schema
    text = str(schema)
    if not text.lstrip().startswith("{"):
        try:
            text = Path(schema).read_text(encoding="utf-8")
        except OSError as error:
            raise BuildError(f"{schema}: {error.strerror}; name the file of an Avro schema") from error
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BuildError(f"{schema}: not an Avro schema: {error}") from error
    return found if isinstance(found, dict) else {"type": found}


class _Builder:
    """Makes the values of one event."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._named: dict[str, Mapping[str, Any]] = {}
        self._open: set[str] = set()

    def event(self, schema: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        built = self._record(schema, schema.get("namespace", ""))
        return built | {name: self._given(name, value) for name, value in overrides.items()}

    def _given(self, name: str, value: Any) -> Any:
        if isinstance(value, Iterator):
            try:
                return next(value)
            except StopIteration:
                raise BuildError(f"the iterator for {name} ended before event {self._number}: give it more") from None
        return value(self._number) if callable(value) else value

    def _record(self, schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        name = self._remember(schema, namespace)
        inner = name.rpartition(".")[0]
        self._open.add(name)
        built = {field["name"]: self._value(field["type"], field["name"], inner) for field in schema["fields"]}
        self._open.discard(name)
        return built

    def _remember(self, schema: Mapping[str, Any], namespace: str) -> str:
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = schema
        return name

    def _value(self, avro_type: Any, field: str, namespace: str) -> Any:
        if isinstance(avro_type, list):
            return self._branch(avro_type, field, namespace)
        if isinstance(avro_type, str):
            named = self._named.get(_full_name(avro_type, namespace))
            return self._simple(avro_type, field) if named is None else self._value(named, field, namespace)
        return self._complex(avro_type, field, namespace)

    def _complex(self, avro_type: Mapping[str, Any], field: str, namespace: str) -> Any:
        if "logicalType" in avro_type and (make := _LOGICAL.get(avro_type["logicalType"])) is not None:
            return make(self._number, avro_type)
        match avro_type["type"]:
            case "record":
                return self._record(avro_type, namespace)
            case "enum" | "fixed" as kind:
                self._remember(avro_type, namespace)
                return self._symbol(avro_type) if kind == "enum" else self._fixed(avro_type)
            case "array":
                return [self._value(avro_type["items"], field, namespace)]
            case "map":
                return {"key": self._value(avro_type["values"], field, namespace)}
            case inner:
                return self._value(inner, field, namespace)

    def _symbol(self, avro_type: Mapping[str, Any]) -> str:
        symbols: list[str] = avro_type["symbols"]
        return symbols[self._number % len(symbols)]

    def _fixed(self, avro_type: Mapping[str, Any]) -> bytes:
        size: int = avro_type["size"]
        return self._number.to_bytes(8, "big").rjust(size, b"\0")[-size:]

    def _branch(self, branches: list[Any], field: str, namespace: str) -> Any:
        """The first branch that is not null and not a record that is being built: a list must end somewhere."""
        for branch in branches:
            if branch != "null" and not (isinstance(branch, str) and _full_name(branch, namespace) in self._open):
                return self._value(branch, field, namespace)
        return None

    def _simple(self, avro_type: str, field: str) -> Any:
        number = self._number
        simple: dict[str, Any] = {
            "null": None,
            "boolean": number % 2 == 0,
            "int": number,
            "long": number,
            "float": float(number),
            "double": float(number),
            "string": f"{field}-{number}",
            "bytes": f"{field}-{number}".encode(),
        }
        if avro_type not in simple:
            raise BuildError(f"field {field} is of the type {avro_type}, which this schema does not define")
        return simple[avro_type]


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _at(number: int, _: Mapping[str, Any]) -> datetime:
    return BEGIN + number * STEP


def _local_at(number: int, _: Mapping[str, Any]) -> datetime:
    return (BEGIN + number * STEP).replace(tzinfo=None)


def _day(number: int, _: Mapping[str, Any]) -> date:
    return BEGIN.date() + timedelta(days=number)


def _time(number: int, _: Mapping[str, Any]) -> time:
    return (BEGIN + timedelta(microseconds=number * 60_000_000 % _DAY_MICROS)).time()


def _decimal(number: int, avro_type: Mapping[str, Any]) -> Decimal:
    return Decimal(number % 10 ** (avro_type["precision"] - avro_type.get("scale", 0))).scaleb(0)


def _uuid(number: int, _: Mapping[str, Any]) -> str:
    return str(UUID(int=number))


# A logical type that is not here is built as the type under it.
_LOGICAL: Mapping[str, Callable[[int, Mapping[str, Any]], Any]] = {
    "timestamp-millis": _at,
    "timestamp-micros": _at,
    "local-timestamp-millis": _local_at,
    "local-timestamp-micros": _local_at,
    "date": _day,
    "time-millis": _time,
    "time-micros": _time,
    "decimal": _decimal,
    "uuid": _uuid,
}
