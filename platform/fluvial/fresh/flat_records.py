"""
Values of one Avro schema (https://avro.apache.org/docs/1.12.0/specification/) to Arrow, field by field over all of them
at once: for records of numbers, booleans, strings and bytes, or null in their place. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
_VARINT_BYTES = 10
_WIDTHS = {"float": 4, "double": 8}
# Behind the last value, so that what is read of one that is cut short is read of something.
_PADDING = bytes(16)
_TEXT_BYTES_MAX = (1 << 31) - 1

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class _Field(NamedTuple):
    name: str
    kind: str
    null_branch: int | None  # of its union; None where it has none


class FlatRecords:
    """
    Decodes values of a schema for which :meth:`takes` says yes.
    """

    def __init__(self, schema: Any) -> None:
        self._fields = [_field(each) for each in schema["fields"]]

    @staticmethod
    def takes(schema: Any) -> bool:
        """
        Whether a schema is a record of numbers, booleans, strings and bytes, or null in their place.
        """
        if not isinstance(schema, dict) or schema.get("type") != "record":
            return False
        return all(_is_plain(field["type"]) for field in schema["fields"])

    def decoded(self, values: Sequence[bytes], skipped: int) -> "tuple[Flags, dict[str, pa.Array]]":
        """
        Whether each of the values is one of the schema, to its last byte, and the fields of all; what they are of a
        value that is none is of no use. The first bytes of each, so many, are none of it.
        """
        walk = _Walk(values, skipped)
        columns = {}
        for field in self._fields:
            there = walk.is_there(field.null_branch)
            columns[field.name] = walk.column(field.kind, there)
        return walk.good & (walk.at == walk.ends), columns


class _Walk:
    """Where each value has been read up to, and whether it was one of its schema so far."""

    def __init__(self, values: Sequence[bytes], skipped: int) -> None:
        self._data = np.frombuffer(b"".join((*values, _PADDING)), np.uint8)
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        self.ends: Longs = sizes.cumsum()
        self.at: Longs = self.ends - sizes + skipped
        self.good: Flags = self.at <= self.ends

    def is_there(self, null_branch: int | None) -> Flags:
        """Read the branch of a union with null; all are there where there is none."""
        everywhere = np.ones(len(self.ends), np.bool_)
        if null_branch is None:
            return everywhere
        branch = self._varint(everywhere)
        self._demand((branch == 0) | (branch == 1), everywhere)
        there: Flags = branch != null_branch
        return there

    def column(self, kind: str, there: Flags) -> "pa.Array":
        import pyarrow as pa

        if kind in _WIDTHS:
            return pa.array(self._fixed(kind, there), mask=~there)
        if kind == "boolean":
            byte = self._data[self._start(np.int64(1), there)]
            self._demand(byte <= 1, there)
            return pa.array(byte == 1, mask=~there)
        number = self._varint(there)
        if kind == "long":
            return pa.array(number, mask=~there)
        if kind == "int":
            self._demand((number >= -(1 << 31)) & (number < 1 << 31), there)
            return pa.array(number.astype(np.int32), mask=~there)
        return self._text(kind, number, there)

    def _demand(self, is_so: Flags, there: Flags) -> None:
        self.good &= is_so | ~there

    def _start(self, size: Any, there: Flags) -> Longs:
        """Go on by so many bytes, and return where they begin; nobody goes beyond its end."""
        start = self.at
        end = start + np.where(there, size, 0)
        # A size that is no size is one of a value that is none.
        self._demand((end <= self.ends) & (end >= start), there)
        self.at = np.where(self.good, end, self.ends)
        begin: Longs = np.where(self.good, start, self.ends)
        return begin

    def _fixed(self, kind: str, there: Flags) -> npt.NDArray[Any]:
        width = _WIDTHS[kind]
        at = self._start(np.int64(width), there)
        data = self._data[at[:, None] + np.arange(width)]
        return np.ascontiguousarray(data).view(f"<f{width}").ravel()

    def _varint(self, there: Flags) -> Longs:
        """Read a zigzag number of up to 64 bits."""
        found = np.zeros(len(there), np.uint64)
        at, left = np.minimum(self.at, self.ends), there & self.good
        for number in range(_VARINT_BYTES):
            byte = np.where(left, self._data[at], 0)
            found |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
            at = at + left
            if number == _VARINT_BYTES - 1:
                self._demand(byte <= 1, left)
            left = left & (byte >= 0x80)
            # What lies behind the end is of another value.
            left &= at < self.ends + 1
            if not left.any():
                break
        self._demand(at <= self.ends, there)
        self.at = np.where(self.good, at, self.ends)
        signed: Longs = (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)
        return signed

    def _text(self, kind: str, sizes: Longs, there: Flags) -> "pa.Array":
        import pyarrow as pa

        begin = self._start(sizes, there)
        sizes = np.where(there & self.good, sizes, 0)
        offsets = np.zeros(len(sizes) + 1, np.int64)
        sizes.cumsum(out=offsets[1:])
        assert offsets[-1] <= _TEXT_BYTES_MAX, "a column has room for what is decoded at once"
        places = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], sizes)
        buffers = [
            pa.py_buffer(np.packbits(there, bitorder="little")),
            pa.py_buffer(offsets.astype(np.int32)),
            pa.py_buffer(self._data[places]),
        ]
        array = pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
        return self._strings(array) if kind == "string" else array

    def _strings(self, array: "pa.Array") -> "pa.Array":
        import pyarrow as pa

        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_text_of(each) for each in array.to_pylist()]
            self.good &= np.fromiter(
                (text is not None for text in texts), np.bool_, len(texts)
            ) | array.is_null().to_numpy(zero_copy_only=False)
            return pa.array(texts, pa.string())


def _text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _field(field: Mapping[str, Any]) -> _Field:
    kind = field["type"]
    null_branch = None
    if isinstance(kind, list):
        null_branch = kind.index("null")
        kind = kind[1 - null_branch]
    return _Field(field["name"], kind["type"] if isinstance(kind, dict) else kind, null_branch)


def _is_plain(kind: Any) -> bool:
    if isinstance(kind, list):
        return len(kind) == 2 and kind.count("null") == 1 and all(each == "null" or _is_plain(each) for each in kind)
    if isinstance(kind, dict):
        return "logicalType" not in kind and kind.get("type") in _KINDS
    return isinstance(kind, str) and kind in _KINDS
