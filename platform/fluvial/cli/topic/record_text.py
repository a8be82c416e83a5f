"""Records as the lines that `fluvial topic consume` prints: text, JSON, raw bytes, or a template of kcat's names."""

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from fluvial.serde.encoding import EncodingError

if TYPE_CHECKING:
    from confluent_kafka import Message

    from fluvial.serde.encoding import Decoder

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPE = re.compile(rb"%(.)|\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}
_INTEGERS = {4: struct.Struct(">i"), 8: struct.Struct(">q")}


class Format(StrEnum):
    """How a record is printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


class KeyFormat(StrEnum):
    """What a key's bytes are."""

    TEXT = "text"
    AVRO = "avro"
    INT = "int"
    HEX = "hex"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """
    A record, and its key and value where they were decoded.

    `value` is the schema id and the JSON value, None where the bytes have no schema id or are printed as they are;
    `key` is the key as JSON, and None for bytes that are text.
    """

    message: "Message"
    value: tuple[int, Any] | None
    key: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDecoder:
    """Decodes values with `values`, None to leave them as bytes, and keys as `key_format` says."""

    values: "Decoder | None"
    keys: "Decoder | None"
    key_format: KeyFormat

    def decode(self, message: "Message") -> Decoded:
        """Decode a record; raises EncodingError that says where the record is."""
        key, value = message.key(), message.value()
        part, hint = "key", "--key-format hex prints its bytes"
        try:
            decoded_key = None if key is None else self._key(key)
            part, hint = "value", "--format raw prints the bytes"
            decoded = None if value is None or self.values is None else self.values.decode(value)
        except EncodingError as error:
            raise EncodingError(
                f"{message.topic()} partition {message.partition()} offset {message.offset()}: the {part} {error}; "
                f"{hint}"
            ) from error
        return Decoded(message=message, value=decoded, key=decoded_key)

    def _key(self, key: bytes) -> Any:
        match self.key_format:
            case KeyFormat.HEX:
                return key.hex()
            case KeyFormat.BASE64:
                return base64.b64encode(key).decode()
            case KeyFormat.INT:
                if len(key) not in _INTEGERS:
                    raise EncodingError(f"has {len(key)} bytes and is no integer of 4 or 8")
                return _INTEGERS[len(key)].unpack(key)[0]
            case KeyFormat.AVRO:
                assert self.keys is not None, "a decoder of keys goes with this format"
                decoded = self.keys.decode(key)
                if decoded is None:
                    raise EncodingError("has no schema id and is not Avro of a registry")
                return decoded[1]
        return None


Line = Callable[[Decoded], bytes]
"""Prints a record, with the end of its line."""


def line_of(form: Format, *, key_separator: str | None, headers: bool) -> Line:
    """Return how records are printed in a format."""
    if form is Format.JSON:
        return lambda record: json.dumps(_envelope(record, headers=headers), ensure_ascii=False).encode() + b"\n"

    def line(record: Decoded) -> bytes:
        before = (_headers(record, b":") or b"NO_HEADERS") + b"\t" if headers else b""
        key = b"" if key_separator is None else _key(record) + key_separator.encode()
        null = b"" if form is Format.RAW else b"null"
        return before + key + _value(record, null) + b"\n"

    return line


def template_of(text: str) -> Line:
    """
    Return how records are printed by a template of kcat's: see `ESCAPES`. Nothing is added, no end of line either.

    Raises a usage error for an escape that there is not.
    """
    parts: list[bytes | Line] = []
    source, at = text.encode(), 0
    for found in _ESCAPE.finditer(source):
        parts.append(source[at : found.start()])
        parts.append(_escape(found, text))
        at = found.end()
    rest = source[at:]
    if rest.endswith(b"%"):
        raise typer.BadParameter(f"--template {text!r}: a % at the end; write %% for the character")
    parts.append(rest)
    return lambda record: b"".join(each if isinstance(each, bytes) else each(record) for each in parts)


def _escape(found: "re.Match[bytes]", text: str) -> bytes | Line:
    name, control = found.groups()
    if name is None:
        if control in _CONTROLS:
            return _CONTROLS[control]
        if control.startswith(b"x") and len(control) == 3:
            return bytes.fromhex(control[1:].decode())
        raise typer.BadParameter(
            f"--template {text!r}: no escape {found[0].decode()}; there are \\n \\r \\t \\\\ \\xNN"
        )
    if name == b"%":
        return b"%"
    if name not in ESCAPES:
        known = " ".join(f"%{each.decode()}" for each in ESCAPES)
        raise typer.BadParameter(f"--template {text!r}: no %{name.decode(errors='replace')}; there are {known} %%")
    return ESCAPES[name]


def _key(record: Decoded) -> bytes:
    if record.key is None:
        return record.message.key() or b""
    return (record.key if isinstance(record.key, str) else json.dumps(record.key, ensure_ascii=False)).encode()


def _value(record: Decoded, null: bytes) -> bytes:
    if record.value is not None:
        return json.dumps(record.value[1], ensure_ascii=False).encode()
    value = record.message.value()
    return null if value is None else value


def _headers(record: Decoded, between: bytes) -> bytes:
    headers = record.message.headers() or ()
    return b",".join(name.encode() + between + (b"NULL" if value is None else value) for name, value in headers)


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else b"%d" % len(value)


ESCAPES: Mapping[bytes, Line] = {
    b"t": lambda record: str(record.message.topic()).encode(),
    b"p": lambda record: b"%d" % record.message.partition(),
    b"o": lambda record: b"%d" % record.message.offset(),
    b"k": _key,
    b"K": lambda record: _length(record.message.key()),
    b"s": lambda record: _value(record, b""),
    b"S": lambda record: _length(record.message.value()),
    b"T": lambda record: b"%d" % record.message.timestamp()[1],
    b"h": lambda record: _headers(record, b"="),
}
"""kcat's names: topic, partition, offset, key and its length, value and its length, timestamp in ms, headers."""


def _envelope(record: Decoded, *, headers: bool) -> dict[str, Any]:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    message = record.message
    kind, time_ms = message.timestamp()
    envelope: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else _instant(time_ms),
        **(_text("key", message.key()) if record.key is None else {"key": record.key}),
    }
    if record.value is None:
        envelope |= _text("value", message.value())
    else:
        envelope |= {"schema_id": record.value[0], "value": record.value[1]}
    found = message.headers()
    if found or headers:
        envelope["headers"] = [{"name": name, **_text("value", value)} for name, value in found or ()]
    return envelope


def _text(name: str, value: bytes | None) -> dict[str, Any]:
    """Return bytes as text under `name`, or in base64 under `<name>_base64` when they are no UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _instant(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
