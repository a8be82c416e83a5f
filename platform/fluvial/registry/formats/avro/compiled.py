"""
The same question as `skip` asks, in code made for one schema: where does a datum end?

What it costs to call a function for each field is most of what skipping costs, so the fields of a record are written
out in one function. It only says that something is wrong, by an exception or a wrong end; `skip` knows what. The two
must agree on every datum, which the tests see to.
"""

import re
from collections.abc import Callable
from typing import Any

from fluvial.registry.formats.avro.skip import INT_BYTES_MAX, LONG_BYTES_MAX, Shapes, compile_skip, read_long
from fluvial.registry.formats.avro.types import Array, Enum, Fixed, Map, Primitive, Record, Schema, Union
from fluvial.registry.formats.schema_kind import UndecodableError

Skip = Callable[[bytes, int], int]

LINES_MAX = 4_500  # beyond it, making the code takes longer than the loop may stand still
BRANCHES_MAX = 50  # are tried one after the other

# Twice a length that is not negative, as it stands there when it is less than 64.
_LENGTH = ("n = b[p]", "p += 1", "if n & 129:", "    n, p = long(b, p - 1)", "    n *= 2", "    if n < 0: wrong()")
_STEP = re.compile(r"p \+= (\d+)")
_FIXED_BYTES = {"null": 0, "float": 4, "double": 8}


def compile_fast(schema: Schema) -> Skip:
    """
    Return a function of a buffer and the position of a datum, which returns where the datum ends.

    It raises ValueError, LookupError or RecursionError for what is no datum, and may run on behind the end of one that
    is cut short, never behind the end of the buffer.
    """
    try:
        return _Writer().function_of(schema)
    except (_TooLargeError, RecursionError):
        return compile_skip(schema)


class _TooLargeError(Exception):
    """The schema says more than code is made for."""


class _Writer:
    """Writes one function for each named type and each type with parts; they call each other by number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Schema] = []  # so that no id is given twice
        self._names: dict[str, int] = {}
        self._lines: list[str] = []
        self._shapes = Shapes()

    def function_of(self, schema: Schema) -> Skip:
        _, schema = self._shapes.core(schema)
        if isinstance(schema, Primitive | Fixed | Enum):
            number = self._function(schema, self._body(schema))
        else:
            number = self._number_of(schema)
        scope: dict[str, Any] = {"long": read_long, "wrong": _wrong, "varint": _varint}
        # The text is made here from types alone: no name or text of the schema is in it.
        exec("\n".join(self._lines), scope)  # noqa: S102
        function: Skip = scope[f"skip{number}"]
        return function

    def _function(self, schema: Schema, lines: list[str]) -> int:
        number = self._reserve(schema)
        self._write(number, lines)
        return number

    def _reserve(self, schema: Schema) -> int:
        number = len(self._kept)
        self._kept.append(schema)
        self._numbers[id(schema)] = number
        return number

    def _write(self, number: int, lines: list[str]) -> None:
        self._lines.append(f"def skip{number}(b, p):")
        self._lines += [f"    {line}" for line in lines]
        self._lines.append("    return p")
        if len(self._lines) > LINES_MAX:
            raise _TooLargeError

    def _number_of(self, schema: Schema) -> int:
        if isinstance(schema, Record):
            known = self._names.get(schema.name.full)
            if known is None:
                known = self._names[schema.name.full] = self._reserve(schema)
                self._write(known, self._body(schema))
            return known
        known = self._numbers.get(id(schema))
        if known is None:
            known = self._reserve(schema)
            self._write(known, self._body(schema))
        return known

    def _inline(self, schema: Schema) -> list[str]:
        """Lines that move `p` behind a datum, or a call of the function that does."""
        if self._shapes.is_empty(schema):
            return []
        _, schema = self._shapes.core(schema)
        match schema:
            case Primitive() | Fixed() | Enum():
                return self._body(schema)
            case Union() if all(isinstance(branch, Primitive | Fixed | Enum) for branch in schema.branches):
                return self._body(schema)
            case _:
                return [f"p = skip{self._number_of(schema)}(b, p)"]

    def _body(self, schema: Schema) -> list[str]:  # noqa: PLR0911 one for each kind
        match schema:
            case Primitive():
                return _primitive(schema.kind)
            case Fixed():
                return [f"p += {schema.size}"]
            case Enum():
                return [
                    "n = b[p]",
                    "p += 1",
                    "if n >= 128: n, p = long(b, p - 1); n *= 2",
                    f"if n & 1 or not 0 <= n < {2 * len(schema.symbols)}: wrong()",
                ]
            case Union():
                return self._union(schema)
            case Record():
                fields = self._shapes.fields(schema)
                return _joined([line for field in fields for line in self._inline(field.schema)])
            case Array():
                return self._blocks(self._inline(schema.items))
            case Map():
                return self._blocks([*_primitive("string"), *self._inline(schema.values)])

    def _union(self, schema: Union) -> list[str]:
        if not schema.branches:
            return ["wrong()"]
        if len(schema.branches) > BRANCHES_MAX:
            raise _TooLargeError
        lines = ["n = b[p]", "p += 1", "if n >= 128: n, p = long(b, p - 1); n *= 2"]
        for index, branch in enumerate(schema.branches):
            lines.append(f"{'el' if index else ''}if n == {2 * index}:")
            lines += [f"    {line}" for line in self._inline(branch) or ["pass"]]
        return [*lines, "else: wrong()"]

    def _blocks(self, item: list[str]) -> list[str]:
        """Arrays and maps: blocks of a count (when negative, their size in bytes follows) and items, up to 0."""
        return [
            "while True:",
            "    count, p = long(b, p)",
            "    if count == 0: break",
            "    stop = None",
            "    if count < 0:",
            "        size, p = long(b, p)",
            "        stop = p + size",
            "        count = -count",
            "    while count:",
            "        count -= 1",
            "        start = p",
            *(f"        {line}" for line in item),
            "        if p == start: break",  # items without bytes: 2**62 of them would be counted one by one
            "        if p > len(b): wrong()",
            "    if stop is not None and p != stop: wrong()",
        ]


def _primitive(kind: str) -> list[str]:
    if kind in _FIXED_BYTES:
        size = _FIXED_BYTES[kind]
        return [f"p += {size}"] if size else []
    match kind:
        case "boolean":
            return ["if b[p] > 1: wrong()", "p += 1"]
        case "int" | "long":
            bytes_max = INT_BYTES_MAX if kind == "int" else LONG_BYTES_MAX
            return [f"if b[p] >= 128: p = varint(b, p, {bytes_max})", "p += 1"]
        case "bytes":
            return [*_LENGTH, "p += n >> 1"]
        case _:
            return [*_LENGTH, "s = b[p:p + (n >> 1)]", "p += n >> 1", "if not s.isascii(): s.decode()"]


def _joined(lines: list[str]) -> list[str]:
    """Make one step of steps of a known length that follow each other."""
    out: list[str] = []
    for line in lines:
        step = _STEP.fullmatch(line)
        before = _STEP.fullmatch(out[-1]) if out else None
        if step and before:
            out[-1] = f"p += {int(before[1]) + int(step[1])}"
        else:
            out.append(line)
    return out


def _varint(buffer: bytes, at: int, bytes_max: int) -> int:
    """The position of the last byte of a number that has more than one."""
    start = at
    while buffer[at] >= 0x80:
        at += 1
        if at - start >= bytes_max:
            raise UndecodableError(f"a number of more than {bytes_max} bytes")
    return at


def _wrong() -> None:
    raise UndecodableError("not a datum of this schema")
