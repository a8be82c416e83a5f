"""
Whether bytes decode under an Avro schema, without building what they say.

A schema is compiled once into nested functions that walk over a datum and return where it ends. Hostile data cannot
make them run longer than the data is, nor deeper than Python's own recursion limit: what takes no bytes is not walked
over, and a record of one field that does is that field.
"""

from collections.abc import Callable

from fluvial.registry.formats.avro.types import Array, Enum, Field, Fixed, Map, Named, Primitive, Record, Schema, Union
from fluvial.registry.formats.schema_kind import UndecodableError

Skip = Callable[[bytes, int], int]

NAMES_MAX = 11  # more than are shown of a path
INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10


class Shapes:
    """What of one schema takes bytes."""

    def __init__(self) -> None:
        # By the id() of types, which the schema keeps alive.
        self._empty: dict[int, bool] = {}
        self._fields: dict[int, list[Field]] = {}
        self._cores: dict[int, tuple[tuple[str, ...], Schema]] = {}

    def is_empty(self, schema: Schema) -> bool:
        """Whether every datum is of no bytes. Of d records with two fields of the next one there are 2^d of these."""
        known = self._empty.get(id(schema))
        if known is not None:
            return known
        match schema:
            case Primitive():
                return schema.kind == "null"
            case Fixed():
                return schema.size == 0
            case Record():
                self._empty[id(schema)] = False  # for what it holds of itself
                found = all(self.is_empty(each.schema) for each in schema.fields)
                self._empty[id(schema)] = found
                return found
            case _:
                return False

    def fields(self, record: Record) -> list[Field]:
        """The fields that take bytes."""
        found = self._fields.get(id(record))
        if found is None:
            found = self._fields[id(record)] = [each for each in record.fields if not self.is_empty(each.schema)]
        return found

    def core(self, schema: Schema) -> tuple[tuple[str, ...], Schema]:
        """The names of fields, the first ones, that lead through records of one such field, and what is there."""
        passed: dict[int, str] = {}
        inner: Schema = schema
        while isinstance(inner, Record) and len(fields := self.fields(inner)) == 1 and id(inner) not in self._cores:
            if id(inner) in passed:
                return (), schema
            passed[id(inner)] = fields[0].name
            inner = fields[0].schema
        found = self._cores.get(id(inner), ((), inner))
        for each, name in reversed(passed.items()):
            found = self._cores[each] = ((name, *found[0])[:NAMES_MAX], found[1])
        return found


def compile_skip(schema: Schema) -> Skip:
    """A function of a buffer and the position of a datum that returns where the datum ends; see `compile_check`."""
    return _Compiler().compile(schema)


def compile_check(schema: Schema) -> Callable[[bytes, int], None]:
    """
    A function of a buffer and a position that raises `UndecodableError` unless exactly one datum reaches from there
    to the end of the buffer.
    """
    skip = compile_skip(schema)

    def check(buffer: bytes, start: int) -> None:
        try:
            end = skip(buffer, start)
        except IndexError:
            raise UndecodableError("the bytes end early") from None
        except RecursionError:
            raise UndecodableError("nested too deeply") from None
        if end != len(buffer):
            raise UndecodableError(f"{len(buffer) - end} bytes are left over")

    return check


def read_long(buffer: bytes, at: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits and the position after it."""
    byte = buffer[at]
    at += 1
    number = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift == 7 * LONG_BYTES_MAX:
            raise UndecodableError(f"a number of more than {LONG_BYTES_MAX} bytes")
        byte = buffer[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at


def _skip_null(buffer: bytes, at: int) -> int:
    return at


def _skip_boolean(buffer: bytes, at: int) -> int:
    if buffer[at] > 1:
        raise UndecodableError(f"{buffer[at]} is not a boolean")
    return at + 1


def _skip_varint(bytes_max: int) -> Skip:
    def skip(buffer: bytes, at: int) -> int:
        if buffer[at] < 0x80:
            return at + 1
        start = at
        while buffer[at] >= 0x80:
            at += 1
            if at - start >= bytes_max:
                raise UndecodableError(f"a number of more than {bytes_max} bytes")
        return at + 1

    return skip


def _skip_exactly(size: int) -> Skip:
    def skip(buffer: bytes, at: int) -> int:
        if at + size > len(buffer):
            raise IndexError
        return at + size

    return skip


def _skip_bytes(buffer: bytes, at: int) -> int:
    length = buffer[at]
    if length < 0x80 and not length & 1:
        end = at + 1 + (length >> 1)
    else:
        length, at = read_long(buffer, at)
        if length < 0:
            raise UndecodableError(f"a length of {length}")
        end = at + length
    if end > len(buffer):
        raise IndexError
    return end


def _skip_string(buffer: bytes, at: int) -> int:
    length = buffer[at]
    if length < 0x80 and not length & 1:
        at += 1
        end = at + (length >> 1)
    else:
        length, at = read_long(buffer, at)
        if length < 0:
            raise UndecodableError(f"a length of {length}")
        end = at + length
    if end > len(buffer):
        raise IndexError
    text = buffer[at:end]
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UndecodableError(f"a string that is not UTF-8: {error.reason}") from None
    return end


SKIP_PRIMITIVE: dict[str, Skip] = {
    "null": _skip_null,
    "boolean": _skip_boolean,
    "int": _skip_varint(INT_BYTES_MAX),
    "long": _skip_varint(LONG_BYTES_MAX),
    "float": _skip_exactly(4),
    "double": _skip_exactly(8),
    "bytes": _skip_bytes,
    "string": _skip_string,
}


class _Compiler:
    """Compiles each named type once, so that a record can contain itself."""

    def __init__(self) -> None:
        self.known: dict[str, Skip] = {}
        self.with_parts: dict[int, Skip] = {}
        self.shapes = Shapes()

    def compile(self, schema: Schema) -> Skip:
        names, inner = self.shapes.core(schema)
        return _skip_record([(names, self._one(inner))]) if names else self._one(inner)

    def _one(self, schema: Schema) -> Skip:
        if self.shapes.is_empty(schema):
            return _skip_null
        match schema:
            case Primitive():
                return SKIP_PRIMITIVE[schema.kind]
            case Array() | Map() | Union():
                return self._with_parts(schema)
            case Fixed() | Enum() | Record():
                return self._named(schema)

    def _with_parts(self, schema: Array | Map | Union) -> Skip:
        found = self.with_parts.get(id(schema))
        if found is None:
            # Known before its parts are, which may lead back to it.
            parts: list[Skip] = []
            found = _skip_union(parts) if isinstance(schema, Union) else _skip_blocks(parts)
            self.with_parts[id(schema)] = found
            match schema:
                case Array():
                    parts.append(self.compile(schema.items))
                case Map():
                    parts.append(_skip_entry(self.compile(schema.values)))
                case Union():
                    parts.extend([self.compile(branch) for branch in schema.branches])
        return found

    def _named(self, schema: Named) -> Skip:
        name = schema.name.full
        if name in self.known:
            return self.known[name]
        match schema:
            case Fixed():
                self.known[name] = _skip_exactly(schema.size)
            case Enum():
                self.known[name] = _skip_enum(len(schema.symbols))
            case Record():
                parts: list[tuple[tuple[str, ...], Skip]] = []
                self.known[name] = _skip_record(parts)
                for field in self.shapes.fields(schema):
                    names, inner = self.shapes.core(field.schema)
                    parts.append(((field.name, *names), self._one(inner)))
        return self.known[name]


def _skip_enum(symbols: int) -> Skip:
    def skip(buffer: bytes, at: int) -> int:
        index = buffer[at]
        if index < 0x80 and not index & 1:
            index >>= 1
            at += 1
        else:
            index, at = read_long(buffer, at)
        if not 0 <= index < symbols:
            raise UndecodableError(f"{index} is not one of the {symbols} symbols")
        return at

    return skip


def _skip_union(branches: list[Skip]) -> Skip:
    def skip(buffer: bytes, at: int) -> int:
        index = buffer[at]
        if index < 0x80 and not index & 1:
            index >>= 1
            at += 1
        else:
            index, at = read_long(buffer, at)
        if not 0 <= index < len(branches):
            raise UndecodableError(f"{index} is not one of the {len(branches)} branches of the union")
        return branches[index](buffer, at)

    return skip


def _skip_record(parts: list[tuple[tuple[str, ...], Skip]]) -> Skip:
    def skip(buffer: bytes, at: int) -> int:
        names: tuple[str, ...] = ()
        try:
            for names, each in parts:  # noqa: B007 (the errors below say which)
                at = each(buffer, at)
        except IndexError:
            raise UndecodableError("the bytes end early").within(*names) from None
        except UndecodableError as error:
            raise error.within(*names) from None
        return at

    return skip


def _skip_entry(value: Skip) -> Skip:
    def skip(buffer: bytes, at: int) -> int:
        return value(buffer, _skip_string(buffer, at))

    return skip


def _skip_blocks(parts: list[Skip]) -> Skip:
    """
    Arrays and maps: blocks of a count (when negative, their size in bytes follows) and items, up to a count of 0.

    `parts` will hold what skips an item.
    """

    def skip(buffer: bytes, at: int) -> int:
        item = parts[0]
        while True:
            count, at = read_long(buffer, at)
            if count == 0:
                return at
            declared_end = None
            if count < 0:
                size, at = read_long(buffer, at)
                declared_end = at + size
                count = -count
            for _ in range(count):
                end = item(buffer, at)
                if end == at:
                    # Items without bytes: a count of 2⁶² of them would otherwise be counted one by one.
                    break
                at = end
            if declared_end is not None and at != declared_end:
                raise UndecodableError("a block is not as long as it says")

    return skip
