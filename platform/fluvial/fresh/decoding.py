"""
Records to Arrow as the tables' plan has them, :func:`fluvial.tables.plan.frames.keyed_events`: no JVM, no I/O.

A value is resolved from the schema that it was written with to the contract's reader schema by fastavro; those that
were written with this schema, as a flat record, are decoded at once. Types are those that Spark's `from_avro` gives.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fluvial.fresh.errors import StaleError
from fluvial.fresh.flat_records import FlatRecords
from fluvial.serde.encoding import PREFIX
from fluvial.spark.avro import Contract

if TYPE_CHECKING:
    import pyarrow as pa

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


class Records(NamedTuple):
    """
    Records of the log, a list for each part of them; timestamps are in milliseconds of Unix time.
    """

    partitions: list[int]
    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]

    def only(self, numbers: Sequence[int]) -> "Records":
        """
        Those with these numbers.
        """
        parts: Any = ([part[number] for number in numbers] for part in self)
        return Records(*parts)


class Decoder:
    """
    Makes events of one contract's records. Raises :class:`StaleError` for a contract of types that it does not know.
    """

    def __init__(self, topic: str, contract: Contract) -> None:
        import fastavro

        self._topic = topic
        self._readers: dict[int, Callable[[io.BytesIO], Any]] = {}
        self._flat: dict[int, FlatRecords] = {}
        document = json.loads(contract.reader)
        plain = _without_times(document)
        reader = fastavro.parse_schema(plain)
        for identity, text in contract.writers.items():
            written = _without_times(json.loads(text))
            self._readers[identity] = _reader(fastavro.parse_schema(written), reader)
            if written == plain and FlatRecords.takes(written):
                self._flat[identity] = FlatRecords(written)
        named: dict[str, Any] = {}
        self._types = {each["name"]: _type_of(each["type"], named, contract.subject) for each in document["fields"]}

    def events(self, records: Records) -> "pa.RecordBatch":
        """
        The records that decode, in their order; those that do not go to quarantine with the next run.
        """
        parts = [*self._parts(records.values)]
        numbers = [number for part in parts for number in part.numbers]
        identities = [identity for part in parts for identity in part.identities]
        order = sorted(range(len(numbers)), key=numbers.__getitem__) if len(parts) > 1 else None
        columns = {name: _joined([part.columns[name] for part in parts], order) for name in self._types}
        if order is not None:
            numbers, identities = [numbers[at] for at in order], [identities[at] for at in order]
        return self._batch(
            records if len(numbers) == len(records.values) else records.only(numbers), identities, columns
        )

    def schema(self) -> "pa.Schema":
        """
        The columns of the events.
        """
        return self.events(Records([], [], [], [], [])).schema

    def _parts(self, values: Sequence[bytes | None]) -> "Iterator[_Part]":
        """The records by how they are decoded: tombstones, those of a schema at once, and the others one by one."""
        import pyarrow as pa

        of: dict[bytes | None, list[int]] = {}
        for number, value in enumerate(values):
            of.setdefault(None if value is None else value[: PREFIX.size], []).append(number)
        others: list[int] = []
        for prefix, numbers in of.items():
            identity = _identity(prefix)
            flat = self._flat.get(identity) if identity is not None else None
            if prefix is None:
                yield self._one_by_one(values, numbers)
            elif flat is None:
                others += numbers
            else:
                good, columns = flat.decoded([values[number] or b"" for number in numbers], PREFIX.size)
                kept = good.nonzero()[0].tolist()
                if len(kept) < len(numbers):
                    others += [numbers[at] for at in (~good).nonzero()[0].tolist()]
                    columns = {name: column.filter(pa.array(good)) for name, column in columns.items()}
                # Milliseconds and days are numbers so far.
                made = {name: columns[name].cast(kind).cast(_micros(kind)) for name, kind in self._types.items()}
                yield _Part([numbers[at] for at in kept], [identity] * len(kept), made)
        if others or not of:
            yield self._one_by_one(values, sorted(others))

    def _one_by_one(self, values: Sequence[bytes | None], numbers: Sequence[int]) -> "_Part":
        import pyarrow as pa

        kept: list[int] = []
        fields: list[Mapping[str, Any]] = []
        identities: list[int | None] = []
        for number in numbers:
            body = values[number]
            identity, value = _TOMBSTONE if body is None else self._decoded(body)
            if value is not None:
                kept.append(number)
                identities.append(identity)
                fields.append(value)
        try:
            return _Part(kept, identities, self._columns(fields))
        except (pa.ArrowException, OverflowError):
            # An int of more than 32 bits, for fastavro reads any as a long.
            fitting = [at for at, value in enumerate(fields) if self._fits(value)]
            columns = self._columns([fields[at] for at in fitting])
            return _Part([kept[at] for at in fitting], [identities[at] for at in fitting], columns)

    def _columns(self, fields: Sequence[Mapping[str, Any]]) -> "Mapping[str, pa.Array]":
        return {name: _array([value.get(name) for value in fields], kind) for name, kind in self._types.items()}

    def _fits(self, value: Mapping[str, Any]) -> bool:
        import pyarrow as pa

        try:
            self._columns([value])
        except (pa.ArrowException, OverflowError):
            return False
        return True

    def _batch(
        self, records: Records, identities: Sequence[int | None], columns: "Mapping[str, pa.Array]"
    ) -> "pa.RecordBatch":
        import pyarrow as pa

        number = len(records.values)
        keys = pa.array(records.keys, "binary")
        own = {
            "_topic": pa.repeat(pa.scalar(self._topic, "string"), number),
            "_partition": pa.array(records.partitions, "int32"),
            "_offset": pa.array(records.offsets, "int64"),
            "_timestamp": _array(records.timestamps, pa.timestamp("ms", "UTC")),
            "_key": keys,
            "_schema_id": pa.array(identities, "int32"),
            "_tombstone": pa.array([value is None for value in records.values], "bool"),
            "_entity": _text(keys),
        }
        return pa.RecordBatch.from_pydict({**columns, **own})

    def _decoded(self, value: bytes) -> tuple[int | None, Mapping[str, Any] | None]:
        """The id of the schema and the fields; no fields where the bytes do not decode."""
        identity = _identity(value[: PREFIX.size])
        read = None if identity is None else self._readers.get(identity)
        if read is None:
            return _UNDECODABLE
        try:
            return identity, read(io.BytesIO(value[PREFIX.size :]))
        except Exception:
            # Whatever fastavro raises at bytes that are no value of the schema.
            return _UNDECODABLE


class _Part(NamedTuple):
    """Some of the records, by their numbers, with the ids of their schemas and the columns of fields."""

    numbers: list[int]
    identities: "list[int | None]"
    columns: "Mapping[str, pa.Array]"


def _text(keys: "pa.Array") -> "pa.Array":
    """Keys as text; null where one is none."""
    import pyarrow as pa

    try:
        return keys.cast("string")
    except pa.ArrowInvalid:
        return pa.array([_text_of(key) for key in keys.to_pylist()], "string")


def _text_of(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def _joined(arrays: "Sequence[pa.Array]", order: list[int] | None) -> "pa.Array":
    import pyarrow as pa

    if order is None:
        return arrays[0]
    return pa.concat_arrays(arrays).take(pa.array(order, "int64"))


def _identity(prefix: bytes | None) -> int | None:
    """The id of the schema that stands before a value; None where none does."""
    if prefix is None or len(prefix) < PREFIX.size or prefix[0] != 0:
        return None
    return int.from_bytes(prefix[1:], "big")


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
