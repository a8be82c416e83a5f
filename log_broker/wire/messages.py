"""
Reads and writes the protocol's messages from a description of their fields.

A description is a dataclass whose fields say how they stand on the wire: `metadata["kafka_type"]`, for a tagged field
also `metadata["tag"]`; `__flexible__` on the class says whether lengths are compact and tagged fields exist. kio
generates one for each version of each message (https://kafka.apache.org/protocol.html).

Requests become instances of their description. Responses are written from plain mappings by field name: a name that a
version does not know is left out, so one answer serves every version. Times and durations are numbers of ms.

Reading is bounded. kio's own reader reserves memory for an announced array length before it looks at the bytes, so a
dozen of them end the process, and it stops at tagged fields it does not know, which Kafka's rule is to skip.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from log_broker.records.varint import read_uvarint, write_uvarint
from log_broker.wire.reading import ELEMENTS_MAX, STRING_BYTES_MAX, Reader

Values = Mapping[str, Any]
ReadValue = Callable[["MessageReader"], Any]
WriteValue = Callable[[bytearray, Any], None]

NO_UUID = UUID(int=0)

_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
    "error_code": struct.Struct(">h"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
_TIMES = frozenset({"timedelta_i32", "timedelta_i64", "datetime_i64"})


class MessageReader(Reader):
    """A cursor over one message. It adds to its base what only described messages hold."""

    __slots__ = ("body", "flexible")

    def __init__(self, body: memoryview, *, flexible: bool, elements_max: int = ELEMENTS_MAX) -> None:
        super().__init__(body, flexible=flexible, elements_max=elements_max)
        self.body = body
        self.flexible = flexible

    def number(self, layout: struct.Struct) -> Any:
        value = layout.unpack_from(self.body, self.position)[0]
        self.position += layout.size
        return value

    def nullable_array_length(self) -> int | None:
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count == -1:
            return None
        if count < 0:
            raise ValueError(f"an array of {count} elements")
        return self._counted(count)

    def tag_count(self) -> int:
        return self._counted(self.uvarint())

    def uvarint(self) -> int:
        value, self.position = read_uvarint(self.body, self.position)
        return value

    def uuid(self) -> UUID | None:
        raw = bytes(self.body[self.position : self.position + 16])
        self.position += 16
        value = UUID(bytes=raw)
        return None if value == NO_UUID else value


class Shape(NamedTuple):
    """What a field's type says: is it an array, may it be null, and the class of its (elements') description."""

    is_array: bool
    nullable: bool
    description: type[Any] | None


class MessageCodec:
    """Reads and writes one description."""

    def __init__(self, description: type[Any]) -> None:
        self._description = description
        self._flexible: bool = description.__flexible__
        self._readers: list[tuple[str, ReadValue]] = []
        self._tagged_readers: dict[int, tuple[str, ReadValue]] = {}
        self._absent: dict[
            str, None
        ] = {}  # tagged fields of which kio does not say what they are when they are left out
        self._writers: list[tuple[str, WriteValue, Any]] = []
        self._tagged_writers: list[tuple[int, str, WriteValue, Any]] = []
        for field in fields(description):
            self._add(field)
        self._tagged_writers.sort(key=lambda writer: writer[0])

    def read(self, reader: MessageReader) -> Any:
        """Read one; raises struct.error, IndexError or ValueError when the bytes do not hold it."""
        values = {name: read(reader) for name, read in self._readers}
        if self._flexible:
            values.update(self._absent)
            for _ in range(reader.tag_count()):
                tag = reader.uvarint()
                size = reader.uvarint()
                end = reader.position + size
                if end > len(reader.body):
                    raise ValueError(f"a tagged field of {size} bytes is cut short")
                if tag in self._tagged_readers:
                    name, read = self._tagged_readers[tag]
                    values[name] = read(reader)
                    if reader.position > end:
                        raise ValueError(f"the tagged field {name} is longer than it says")
                reader.position = end
        return self._description(**values)

    def write(self, out: bytearray, values: Values) -> None:
        """Append one; raises KeyError naming a field that has no default and is not given."""
        for name, write, default in self._writers:
            value = values.get(name, default)
            if value is MISSING:
                raise KeyError(f"{self._description.__name__} needs {name}")
            write(out, value)
        if self._flexible:
            given = [entry for entry in self._tagged_writers if entry[1] in values and values[entry[1]] != entry[3]]
            write_uvarint(out, len(given))
            for tag, name, write, _ in given:
                content = bytearray()
                write(content, values[name])
                write_uvarint(out, tag)
                write_uvarint(out, len(content))
                out += content

    def _add(self, field: "Field[Any]") -> None:
        shape = shape_of(field.type)
        read, write = _value_codec(field, shape, flexible=self._flexible)
        tag = field.metadata.get("tag")
        default = _default_of(field)
        if tag is None:
            self._readers.append((field.name, read))
            self._writers.append((field.name, write, default))
        else:
            self._tagged_readers[tag] = (field.name, read)
            if default is MISSING:
                self._absent[field.name] = None
            self._tagged_writers.append((tag, field.name, write, default))


_codecs: dict[type[Any], MessageCodec] = {}


def codec_of(description: type[Any]) -> MessageCodec:
    """Return the codec of a description, made once."""
    codec = _codecs.get(description)
    if codec is None:
        codec = _codecs[description] = MessageCodec(description)
    return codec


def shape_of(annotation: Any) -> Shape:
    """Take `tuple[X, ...] | None` and the like apart."""
    nullable = False
    if get_origin(annotation) in {UnionType, Union}:
        nullable = NoneType in get_args(annotation)
        (annotation,) = (option for option in get_args(annotation) if option is not NoneType)
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation = get_args(annotation)[0]
    description = annotation if isinstance(annotation, type) and is_dataclass(annotation) else None
    return Shape(is_array, nullable, description)


def _default_of(field: "Field[Any]") -> Any:
    if isinstance(field.default, timedelta):
        return round(field.default.total_seconds() * 1000)
    if field.default is MISSING and field.name == "throttle_time":
        return 0
    return field.default


def _value_codec(field: "Field[Any]", shape: Shape, *, flexible: bool) -> tuple[ReadValue, WriteValue]:
    read: ReadValue
    write: WriteValue
    if shape.description is not None:
        inner = codec_of(shape.description)
        read, write = inner.read, inner.write
        if shape.nullable and not shape.is_array:
            return _nullable_struct(read, write)
    else:
        read, write = _primitive(field.metadata["kafka_type"], flexible=flexible)
    if shape.is_array:
        read, write = _array(_never_null(read, field), write, flexible=flexible)
    return read if shape.nullable else _never_null(read, field), write


def _never_null(read: ReadValue, field: "Field[Any]") -> ReadValue:
    if field.metadata.get("kafka_type") == "uuid":  # all zeros, which kio calls None
        return read

    def read_value(reader: MessageReader) -> Any:
        value = read(reader)
        if value is None:
            raise ValueError(f"{field.name} is null")
        return value

    return read_value


def _array(read: ReadValue, write: WriteValue, *, flexible: bool) -> tuple[ReadValue, WriteValue]:
    def read_array(reader: MessageReader) -> Any:
        count = reader.nullable_array_length()
        if count is None:
            return None
        return tuple([read(reader) for _ in range(count)])

    def write_array(out: bytearray, value: Any) -> None:
        count = -1 if value is None else len(value)
        if flexible:
            write_uvarint(out, count + 1)
        else:
            out += _NUMBERS["int32"].pack(count)
        for element in value or ():
            write(out, element)

    return read_array, write_array


def _nullable_struct(read: ReadValue, write: WriteValue) -> tuple[ReadValue, WriteValue]:
    """A single structure that may be null has a byte before it: -1 for null (KIP-893)."""

    def read_nullable(reader: MessageReader) -> Any:
        return None if reader.int8() < 0 else read(reader)

    def write_nullable(out: bytearray, value: Any) -> None:
        out += b"\xff" if value is None else b"\x01"
        if value is not None:
            write(out, value)

    return read_nullable, write_nullable


def _primitive(kafka_type: str, *, flexible: bool) -> tuple[ReadValue, WriteValue]:
    if kafka_type == "string":
        return _read_string, _write_compact if flexible else _write_string
    if kafka_type in {"bytes", "records"}:
        return _read_bytes, _write_compact if flexible else _write_bytes
    if kafka_type == "uuid":
        return MessageReader.uuid, _write_uuid
    layout = _NUMBERS[kafka_type]
    null = -1 if kafka_type in _TIMES else None

    def read_number(reader: MessageReader) -> Any:
        return reader.number(layout)

    def write_number(out: bytearray, value: Any) -> None:
        out += layout.pack(null if value is None else value)

    return read_number, write_number


def _read_string(reader: MessageReader) -> str | None:
    raw = reader.nullable_string()
    return None if raw is None else raw.decode()


def _read_bytes(reader: MessageReader) -> bytes | None:
    view = reader.nullable_bytes()
    return None if view is None else bytes(view)


def _write_compact(out: bytearray, value: str | bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    raw = _text(value) if isinstance(value, str) else value
    write_uvarint(out, len(raw) + 1)
    out += raw


def _write_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    raw = _text(value)
    out += _NUMBERS["int16"].pack(len(raw))
    out += raw


def _text(value: str) -> bytes:
    """Encode a string; a message that repeats what a client has sent may be longer than a string can be."""
    raw = value.encode()
    if len(raw) <= STRING_BYTES_MAX:
        return raw
    return raw[:STRING_BYTES_MAX].decode(errors="ignore").encode()


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _NUMBERS["int32"].pack(len(value))
    out += value


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += (value or NO_UUID).bytes
