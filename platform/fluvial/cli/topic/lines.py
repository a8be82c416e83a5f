"""Lines of input as the keys and values of records."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fluvial.errors import FluvialError

LINE_BYTES_MAX = 64 << 20


class LineError(FluvialError):
    """A line of the input is not a record; the text says which line and why."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"line {number}: {message}")
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The content of one line; None is a null key or a tombstone."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """
    How a line is read.

    `key_separator` splits `key<separator>value`; `key_field` names the field of a JSON value that is the key. Without
    `encode` a line is a plain string; with it, JSON that `encode` turns into bytes, and `null` is a tombstone.
    """

    encode: Callable[[Any], bytes] | None = None
    key_field: str | None = None
    key_separator: str | None = None

    def read(self, number: int, line: bytes) -> Record | None:
        """Return the record of a line without its end; None for an empty line where JSON is expected."""
        key, text = self._split(number, line)
        if self.encode is None and self.key_field is None:
            return Record(key=key, value=text)
        if not text.strip():
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise LineError(number, f"not JSON: {error}") from error
        if self.key_field is not None:
            key = self._key(number, value)
        if value is None:
            return Record(key=key, value=None)
        if self.encode is None:
            return Record(key=key, value=text)
        try:
            return Record(key=key, value=self.encode(value))
        except FluvialError as error:
            raise LineError(number, str(error)) from error

    def _split(self, number: int, line: bytes) -> tuple[bytes | None, bytes]:
        if self.key_separator is None:
            return None, line
        key, separator, value = line.partition(self.key_separator.encode())
        if not separator:
            raise LineError(number, f"holds no {self.key_separator!r} between key and value (--key-separator)")
        return key, value

    def _key(self, number: int, value: Any) -> bytes | None:
        if not isinstance(value, dict) or self.key_field not in value:
            raise LineError(number, f"has no field {self.key_field!r} for the key (--key-field)")
        key = value[self.key_field]
        if key is None:
            return None
        if isinstance(key, dict | list | float | bool):
            raise LineError(number, f"the field {self.key_field!r} is {key!r}; a key is a string or a whole number")
        return str(key).encode()
