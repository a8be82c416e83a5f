"""
The key of a table: the columns that tell its rows apart, and a key's value in the forms that it comes in.

A key is known by one text, the same wherever it comes from: a path, JSON, Python or a column of a data file.
"""

import base64
import binascii
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.delta.snapshot import Snapshot
from fluvial.serve.errors import BadKeyError, NoKeyError

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = ("_partition", "_offset")
VERSIONED = ("valid_from", "is_current", "_end_offset")
"""The columns of a state that keeps former rows (SCD type 2)."""

_BETWEEN = "\x1f"
_WHOLE = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PLAIN = ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", *_WHOLE)
_TEXT_MAX = 64 * 1024
_DECIMALS = Context(prec=100)


def is_versioned(table: str, snapshot: Snapshot) -> bool:
    """
    Whether a table keeps former rows of its keys.
    """
    return table.startswith("state.") and set(VERSIONED) <= {each.name for each in snapshot.columns}


def key_columns(table: str, path: str, snapshot: Snapshot) -> tuple[str, ...]:
    """
    The columns that tell the rows of a table apart; none where only its owner knows.

    Of a history they are the place in the log, of a compacted table and a state the first column (beside the place
    where former rows are kept), of a mart what its pipeline declares.
    """
    names = [each.name for each in snapshot.columns]
    kind = table.partition(".")[0]
    if kind in ("history", "quarantine") and set(PLACE) <= set(names):
        return PLACE
    if kind in ("compacted", "state"):
        return (names[0], *PLACE) if is_versioned(table, snapshot) else (names[0],)
    if kind == "marts":
        made = newest_made(TableLog(None, path))
        declared = () if made is None or made.stamp.key is None else tuple(made.stamp.key.get("columns", ()))
        return declared if set(declared) <= set(names) else ()
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """
    Key columns with their types of Delta's schema. `only` is the column that is true of the row to be found.
    """

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    only: str | None = None

    @classmethod
    def of(cls, table: str, path: str, snapshot: Snapshot, declared: Sequence[str] = ()) -> "Key":
        """
        The key by which rows of a table are looked up, `declared` or its own. Raises :class:`NoKeyError`.
        """
        columns = tuple(declared) or key_columns(table, path, snapshot)
        only = None
        if not declared and is_versioned(table, snapshot):
            columns, only = columns[:1], "is_current"
        types = {each.name: each.type for each in snapshot.columns}
        if not columns:
            raise NoKeyError(f"which columns tell the rows of {table} apart is not known: --key {table}=COLUMN says it")
        for name in columns:
            if name not in types:
                raise NoKeyError(f"{table} has no column {name}, by which its rows are to be looked up")
            if types[name] not in _PLAIN and not types[name].startswith("decimal("):
                raise NoKeyError(f"rows of {table} are not looked up by {name}, which is {types[name]}")
        return cls(columns=columns, kinds=tuple(types[name] for name in columns), only=only)

    def of_path(self, parts: Sequence[str]) -> tuple[Any, ...]:
        """
        The value that parts of a path stand for, each as it was sent; raises :class:`BadKeyError`.

        A key of one column may hold slashes that are not escaped.
        """
        if len(self.columns) == 1:
            parts = ["/".join(parts)]
        return self._read([unquote_to_bytes(part) for part in parts])

    def of_words(self, words: Sequence[str]) -> tuple[Any, ...]:
        """
        The value that words stand for, one a column; raises :class:`BadKeyError`.
        """
        return self._read([word.encode("utf-8", "surrogateescape") for word in words])

    def of_value(self, value: Any) -> tuple[Any, ...]:
        """
        The value that JSON or Python stands for: a sequence or an object of columns, or for one column its value.

        Raises :class:`BadKeyError`.
        """
        if isinstance(value, Mapping):
            if set(value) != set(self.columns):
                raise BadKeyError(f"the key is {', '.join(self.columns)}, not {', '.join(map(str, value))}"[:500])
            value = [value[name] for name in self.columns]
        parts = list(value) if isinstance(value, list | tuple) else [value]
        self._demand(len(parts))
        return tuple(_typed(*each) for each in zip(self.columns, self.kinds, parts, strict=True))

    def parts(self, key: Sequence[Any]) -> list[tuple[str, str, Any]]:
        """
        Each column of a key with its type and value.
        """
        return list(zip(self.columns, self.kinds, key, strict=True))

    def text(self, key: Sequence[Any]) -> str:
        """
        The text by which a key is known.
        """
        import pyarrow as pa

        arrays = [pa.array([value], arrow_type(kind)) for value, kind in zip(key, self.kinds, strict=True)]
        (text,) = _joined(arrays)
        assert text is not None, "a key that is asked for has no null"
        return text

    def texts(self, rows: "pa.Table | pa.RecordBatch") -> list[str | None]:
        """
        The texts of the keys of some rows; None for a key with a null, which nobody can ask for.
        """
        if not set(self.columns) <= set(rows.schema.names):
            return [None] * rows.num_rows
        columns = [rows.column(name) for name in self.columns]
        return _joined([_as(column, kind) for column, kind in zip(columns, self.kinds, strict=True)])

    def _read(self, parts: Sequence[bytes]) -> tuple[Any, ...]:
        self._demand(len(parts))
        return tuple(_parsed(*each) for each in zip(self.columns, self.kinds, parts, strict=True))

    def _demand(self, count: int) -> None:
        if count != len(self.columns):
            raise BadKeyError(f"the key is {', '.join(self.columns)}: give {len(self.columns)} values, not {count}")


def arrow_type(kind: str) -> "pa.DataType":
    """
    Arrow's type for a plain type of Delta's schema.
    """
    import pyarrow as pa

    if kind.startswith("decimal("):
        precision, scale = (int(each) for each in kind[8:-1].split(","))
        return pa.decimal128(precision, scale)
    if kind in _WHOLE:
        return pa.type_for_alias(f"int{_WHOLE[kind]}")
    if kind.startswith("timestamp"):
        return pa.timestamp("us", "UTC" if kind == "timestamp" else None)
    return {"string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "date": pa.date32()}[kind]


def _as(column: "pa.Array | pa.ChunkedArray", kind: str) -> "pa.Array":
    """A column of a file, which may have a narrower type than the table."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    wanted = arrow_type(kind)
    return column if column.type == wanted else column.cast(wanted)


def _joined(columns: "Sequence[pa.Array]") -> list[str | None]:
    texts = [_texts(column) for column in columns]
    if len(texts) == 1:
        return texts[0]
    return [
        None if None in row else _BETWEEN.join(part for part in row if part is not None)
        for row in zip(*texts, strict=True)
    ]


def _texts(column: "pa.Array") -> list[str | None]:
    import pyarrow as pa
    from pyarrow import types

    if types.is_binary(column.type):
        return [None if each is None else each.hex() for each in column.to_pylist()]
    if types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return list((column if types.is_string(column.type) else column.cast(pa.string())).to_pylist())


def _parsed(column: str, kind: str, part: bytes) -> Any:
    """A part of a key that came as bytes."""
    if kind == "binary":
        return part
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        raise BadKeyError(f"the key {column} is not text in UTF-8") from error
    return _of_text(column, kind, text)


def _typed(column: str, kind: str, value: Any) -> Any:
    """A part of a key that came as JSON or from Python."""
    if isinstance(value, str):
        if kind != "binary":
            return _of_text(column, kind, value)
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise BadKeyError(f"the key {column} is binary: write it in base64") from error
    fits = {
        "binary": isinstance(value, bytes),
        "boolean": isinstance(value, bool),
        "date": isinstance(value, dt.date) and not isinstance(value, dt.datetime),
    }.get(kind)
    if fits is None:
        fits = isinstance(value, dt.datetime) if kind.startswith("timestamp") else _is_number(value, kind)
    if not fits:
        raise _wrong(column, kind, value)
    return value if isinstance(value, bytes | bool) else _of_text(column, kind, str(value))


def _is_number(value: Any, kind: str) -> bool:
    return kind != "string" and isinstance(value, int | Decimal) and not isinstance(value, bool)


def _of_text(column: str, kind: str, text: str) -> Any:
    if len(text) > _TEXT_MAX:
        raise BadKeyError(f"the key {column} has {len(text)} characters; no more than {_TEXT_MAX} are looked up")
    try:
        if kind == "string":
            text.encode()
            return text
        if kind in _WHOLE:
            return _whole(text, _WHOLE[kind])
        if kind == "boolean":
            return {"true": True, "false": False}[text]
        if kind == "date":
            return dt.date.fromisoformat(text)
        if kind.startswith("timestamp"):
            return _instant(text, zoned=kind == "timestamp")
        return _decimal(text, kind)
    except (ValueError, KeyError, InvalidOperation, OverflowError) as error:
        raise _wrong(column, kind, text) from error


def _whole(text: str, bits: int) -> int:
    # int() takes " 7 ", "7_0" and digits of other scripts too.
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise ValueError(text)
    number = int(text)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(text)
    return number


def _instant(text: str, *, zoned: bool) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if zoned:
        return found.astimezone(dt.UTC) if found.tzinfo else found.replace(tzinfo=dt.UTC)
    if found.tzinfo:
        raise ValueError(text)
    return found


def _decimal(text: str, kind: str) -> Decimal:
    precision, scale = (int(each) for each in kind[8:-1].split(","))
    if len(text) > 2 * precision + 10:
        raise ValueError(text)
    found = Decimal(text)
    if not found.is_finite():
        raise ValueError(text)
    _, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int), "a finite number has an exponent"
    if found and len(digits) + exponent > precision - scale:
        raise ValueError(text)
    exact = found.quantize(Decimal((0, (1,), -scale)), context=_DECIMALS)
    if exact != found:
        raise ValueError(text)
    return exact


def _wrong(column: str, kind: str, value: Any) -> BadKeyError:
    shown = repr(str(value)[:100]) if isinstance(value, str | int | float | Decimal | dt.date) else type(value).__name__
    return BadKeyError(f"the key {column} is {kind}, which {shown} is not")
