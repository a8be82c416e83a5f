"""
Records to Arrow as the tables' plan has them, :func:`fluvial.tables.plan.frames.keyed_events`: no JVM, no I/O.

A value is resolved from the schema that it was written with to the contract's reader schema by fastavro; types are
those that Spark's `from_avro` gives.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fluvial.fresh.errors import StaleError
from fluvial.serde.encoding import PREFIX
from fluvial.spark.avro import Contract

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 10_000
_PLAIN = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_TIMES = {
    "timestamp-millis": ("ms", "UTC"),
    "timestamp-micros": ("us", "UTC"),
    "local-timestamp-millis": ("ms", None),
    "local-timestamp-micros": ("us", None),
}


_TOMBSTONE: tuple[None, Mapping[str, Any]] = (None, {})
_UNDECODABLE = (None, None)


class Record(NamedTuple):
    """
    A record of the log; `timestamp` is in milliseconds of Unix time.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Decoder:
    """
    Makes events of one contract's records. Raises :class:`StaleError` for a contract of types that it does not know.
    """

    def __init__(self, topic: str, contract: Contract) -> None:
        import fastavro

        self._topic = topic
        self._readers: dict[int, Callable[[io.BytesIO], Any]] = {}
        document = json.loads(contract.reader)
        reader = fastavro.parse_schema(_without_times(document))
        for identity, text in contract.writers.items():
            writer = fastavro.parse_schema(_without_times(json.loads(text)))
            self._readers[identity] = _reader(writer, reader)
        named: dict[str, Any] = {}
        self._types = {each["name"]: _type_of(each["type"], named, contract.subject) for each in document["fields"]}

    def events(self, records: Iterable[Record]) -> "Iterator[pa.RecordBatch]":
        """
        The records that decode, batch by batch; those that do not go to quarantine with the next run.
        """
        remaining = iter(records)
        while chunk := list(islice(remaining, _BATCH)):
            yield self._batch(chunk)

    def schema(self) -> "pa.Schema":
        """
        The columns of the events.
        """
        return self._batch([]).schema

    def _batch(self, records: Sequence[Record]) -> "pa.RecordBatch":
        import pyarrow as pa

        kept: list[Record] = []
        values: list[Mapping[str, Any]] = []
        identities: list[int | None] = []
        for record in records:
            identity, value = _TOMBSTONE if record.value is None else self._decoded(record.value)
            if value is not None:
                kept.append(record)
                identities.append(identity)
                values.append(value)
        partitions, offsets, timestamps, keys, raw = zip(*kept, strict=True) if kept else ((), (), (), (), ())
        columns = {name: _array([value.get(name) for value in values], kind) for name, kind in self._types.items()}
        columns |= {
            "_topic": pa.repeat(pa.scalar(self._topic, "string"), len(kept)),
            "_partition": pa.array(partitions, "int32"),
            "_offset": pa.array(offsets, "int64"),
            "_timestamp": _array(timestamps, pa.timestamp("ms", "UTC")),
            "_key": pa.array(keys, "binary"),
            "_schema_id": pa.array(identities, "int32"),
            "_tombstone": pa.array([value is None for value in raw], "bool"),
        }
        return pa.RecordBatch.from_pydict({**columns, "_entity": columns["_key"].cast("string")})

    def _decoded(self, value: bytes) -> tuple[int | None, Mapping[str, Any] | None]:
        """The id of the schema and the fields; no fields where the bytes do not decode."""
        if len(value) < PREFIX.size or value[0] != 0:
            return _UNDECODABLE
        identity = int.from_bytes(value[1 : PREFIX.size], "big")
        read = self._readers.get(identity)
        if read is None:
            return _UNDECODABLE
        try:
            return identity, read(io.BytesIO(value[PREFIX.size :]))
        except Exception:
            # Whatever fastavro raises at bytes that are no value of the schema.
            return _UNDECODABLE


def _reader(writer: Any, reader: Any) -> Callable[[io.BytesIO], Any]:
    import fastavro

    wanted = None if writer == reader else reader
    return lambda body: fastavro.schemaless_reader(body, writer, wanted)


def _without_times(schema: Any) -> Any:
    """The schema by which instants and dates are numbers, which Arrow takes by the million."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if isinstance(schema, dict):
        is_decimal = schema.get("logicalType") == "decimal"
        return {name: _without_times(each) for name, each in schema.items() if name != "logicalType" or is_decimal}
    return schema


def _array(values: Sequence[Any], kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    if _has(kind, pa.types.is_map):
        values = [_pairs(value, kind) for value in values]
    array = pa.array(values, kind)
    return array.cast(_micros(kind)) if _has(kind, pa.types.is_timestamp) else array


def _has(kind: "pa.DataType", is_wanted: Callable[[Any], bool]) -> bool:
    return is_wanted(kind) or any(_has(kind.field(number).type, is_wanted) for number in range(kind.num_fields))


def _micros(kind: "pa.DataType") -> "pa.DataType":
    """The type with microseconds for milliseconds, as Spark counts."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _micros(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_micros(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _micros(each.type)) for each in kind])
    return kind


def _pairs(value: Any, kind: "pa.DataType") -> Any:
    """A value whose maps are lists of pairs."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _pairs(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_list(kind):
        return [_pairs(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {each.name: _pairs(value[each.name], each.type) for each in kind}
    return value


def _type_of(schema: Any, named: dict[str, Any], subject: str) -> "pa.DataType":
    """The type of a schema's values as fastavro gives them; `named` gathers the types that it names."""
    import pyarrow as pa

    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        if len(branches) != 1:
            raise StaleError(f"{subject} has a union of several types")
        (schema,) = branches
    if isinstance(schema, str) and schema in named:
        # Without itself: what holds itself has no end.
        schema, named = named[schema], {name: each for name, each in named.items() if each is not named[schema]}
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _type_of(kind, named, subject)
    if isinstance(schema, dict) and "name" in schema:
        space = schema.get("namespace")
        named |= dict.fromkeys((schema["name"], f"{space}.{schema['name']}"), schema)
    match kind:
        case "array":
            return pa.list_(_type_of(schema["items"], named, subject))
        case "map":
            return pa.map_(pa.string(), _type_of(schema["values"], named, subject))
        case "record":
            inner = ((each["name"], _type_of(each["type"], named, subject)) for each in schema["fields"])
            return pa.struct([pa.field(name, each) for name, each in inner])
    return _logical(schema, kind) or _plain(kind, subject)


def _logical(schema: Any, kind: str) -> "pa.DataType | None":
    import pyarrow as pa

    match (schema.get("logicalType") if isinstance(schema, dict) else None, kind):
        case ("decimal", "bytes" | "fixed"):
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        case ("date", "int"):
            return pa.date32()
        case (logical, "long") if logical in _TIMES:
            return pa.timestamp(*_TIMES[logical])
    return None


def _plain(kind: str, subject: str) -> "pa.DataType":
    import pyarrow as pa

    if kind not in _PLAIN:
        raise StaleError(f"{subject} has a field of type {kind}")
    return pa.type_for_alias(_PLAIN[kind])
