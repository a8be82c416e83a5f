"""JSON values of the input as records: what becomes the key, the timestamp, the headers and the value."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from fluvial.errors import FluvialError


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """
    What is sent; a key of None is null, a value of None a tombstone.

    `timestamp_ms` is the event time in milliseconds of Unix time, None for the time at which it is sent.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """
    How a JSON value becomes a record.

    `key_field`, `timestamp_field` and `header_fields` (name of the header to field) name fields of the value, `headers`
    are the same for each record. `encode` turns the value into bytes; `fields` are those that it takes: the named ones
    among the rest are left out of the value.
    """

    encode: Callable[[Any], bytes] | None = None
    fields: frozenset[str] = frozenset()
    key_field: str | None = None
    timestamp_field: str | None = None
    header_fields: Mapping[str, str] | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def needs_json(self) -> bool:
        """Whether a value must be read before it can be sent."""
        return self.encode is not None or bool(self._named)

    def plain(self, key: bytes | None, value: bytes) -> Record:
        """Return the record of bytes that are sent as they are."""
        return Record(key=key, value=value, headers=self.headers)

    def record(self, value: Any, *, key: bytes | None = None, text: bytes | None = None) -> Record:
        """
        Return the record of a value; null is a tombstone.

        Without `encode` the value is sent as `text`, or written as JSON. Raises FluvialError that names the field.
        """
        if self.key_field is not None:
            key = self._key(value)
        return Record(
            key=key,
            value=None if value is None else self._bytes(value, text),
            timestamp_ms=None if self.timestamp_field is None else self._timestamp_ms(value, self.timestamp_field),
            headers=self.headers + self._headers(value),
        )

    @property
    def _named(self) -> set[str]:
        own = {name for name in (self.key_field, self.timestamp_field) if name is not None}
        return own | set((self.header_fields or {}).values())

    def _bytes(self, value: Any, text: bytes | None) -> bytes:
        if self.encode is None:
            return json.dumps(value, ensure_ascii=False).encode() if text is None else text
        left_out = self._named - self.fields
        if left_out and self.fields and isinstance(value, dict):
            value = {name: each for name, each in value.items() if name not in left_out}
        return self.encode(value)

    def _key(self, value: Any) -> bytes | None:
        key = _field(value, self.key_field, "the key (--key-field)")
        if key is None:
            return None
        if isinstance(key, dict | list | float | bool):
            raise FluvialError(f"the field {self.key_field!r} is {key!r}; a key is a string or a whole number")
        return str(key).encode()

    def _headers(self, value: Any) -> tuple[tuple[str, bytes | None], ...]:
        found = []
        for name, field in (self.header_fields or {}).items():
            header = _field(value, field, "a header (--header-field)")
            text = header if isinstance(header, str) else json.dumps(header, ensure_ascii=False)
            found.append((name, None if header is None else text.encode()))
        return tuple(found)

    @staticmethod
    def _timestamp_ms(value: Any, name: str) -> int:
        time = _field(value, name, "the timestamp (--timestamp-field)")
        time_ms = _time_ms(time)
        if time_ms is None:
            raise FluvialError(
                f"the field {name!r} is {time!r}; a timestamp is ISO 8601, such as 2026-03-01T12:00:00Z, or "
                "milliseconds of Unix time"
            )
        if time_ms <= 0:
            raise FluvialError(f"the field {name!r} is {time!r}; a timestamp is after 1970-01-01T00:00:00Z")
        return time_ms


def _field(value: Any, name: str | None, purpose: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        known = value if isinstance(value, dict) else {}
        near = get_close_matches(name or "", known, n=1)
        hint = f": did you mean {near[0]}?" if near else f"; its fields are {', '.join(known)}" if known else ""
        raise FluvialError(f"has no field {name!r} for {purpose}{hint}")
    return value[name]


def _time_ms(time: Any) -> int | None:
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    if not isinstance(time, str):
        return None
    if time.removeprefix("-").isdecimal():
        return int(time)
    try:
        when = datetime.fromisoformat(time)
    except ValueError:
        return None
    # A fraction of a millisecond is cut off, as Spark and the Java client do.
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
