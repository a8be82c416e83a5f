"""Lines of input as records."""

import json
from dataclasses import dataclass, field

from fluvial.cli.topic.rows import Record, RowReader
from fluvial.errors import FluvialError

LINE_BYTES_MAX = 64 << 20


class LineError(FluvialError):
    """A line, or a row, of the input is not a record; the text says which one and why."""

    def __init__(self, number: int, why: str, *, unit: str = "line") -> None:
        super().__init__(f"{unit} {number}: {why}")
        self.number = number
        self.why = why
        self.unit = unit


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """
    How a line is read: as JSON where `rows` needs that, and otherwise as a plain string.

    `key_separator` splits `key<separator>value`.
    """

    rows: RowReader = field(default_factory=RowReader)
    key_separator: str | None = None

    def read(self, number: int, line: bytes) -> Record | None:
        """Return the record of a line without its end; None for an empty line where JSON is expected."""
        key, text = self._split(number, line)
        if not self.rows.needs_json:
            return self.rows.plain(key, text)
        if not text.strip():
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise LineError(number, f"not JSON: {error}") from error
        try:
            return self.rows.record(value, key=key, text=text)
        except FluvialError as error:
            raise LineError(number, str(error)) from error

    def _split(self, number: int, line: bytes) -> tuple[bytes | None, bytes]:
        if self.key_separator is None:
            return None, line
        key, separator, value = line.partition(self.key_separator.encode())
        if not separator:
            raise LineError(number, f"holds no {self.key_separator!r} between key and value (--key-separator)")
        return key, value
