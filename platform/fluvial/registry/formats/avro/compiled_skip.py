"""
The walk of :mod:`.skip` by the compiled `log_broker.records._walk.AvroSkip`, which takes a twentieth of the time.

A schema becomes a program: numbers of 32 bits, nodes one behind the other, each an operation and its arguments, of
which some are where other nodes begin. The first node is the schema's.
"""

from array import array
from enum import IntEnum

from fluvial.registry.formats.avro.skip import INT_BYTES_MAX, LONG_BYTES_MAX, Shapes, Skip
from fluvial.registry.formats.avro.types import Array, Enum, Fixed, Map, Primitive, Record, Schema, Union
from log_broker.records.compiled import walk

_ARGUMENT_MAX = 2**31 - 1


class Operation(IntEnum):
    """
    What a node does, and its argument: the most bytes of a number, a size, how many symbols or children, or the child.
    """

    NOTHING = 0
    BOOLEAN = 1
    NUMBER = 2
    EXACTLY = 3
    BYTES = 4
    STRING = 5
    ENUM = 6
    UNION = 7
    RECORD = 8
    ARRAY = 9
    MAP = 10


_PRIMITIVES = {
    "boolean": (Operation.BOOLEAN, 0),
    "int": (Operation.NUMBER, INT_BYTES_MAX),
    "long": (Operation.NUMBER, LONG_BYTES_MAX),
    "float": (Operation.EXACTLY, 4),
    "double": (Operation.EXACTLY, 8),
    "bytes": (Operation.BYTES, 0),
    "string": (Operation.STRING, 0),
}


def compiled_skip(schema: Schema) -> Skip | None:
    """
    A compiled `Skip`, which raises ValueError for every datum that it does not know to be one; None where this
    installation has nothing compiled.
    """
    if walk is None:
        return None
    program = _Program()
    program.node(schema)
    if max(program.code) > _ARGUMENT_MAX:
        return None  # a fixed of more than 2 GiB
    return walk.AvroSkip(array("i", program.code).tobytes())


class _Program:
    """Nodes of the types of a schema, of each type one, so that a record can contain itself."""

    def __init__(self) -> None:
        self.code: list[int] = []
        self._begins: dict[int | str, int] = {}
        self._shapes = Shapes()

    def node(self, schema: Schema) -> int:
        """Where the node of a type begins; it is made when it is first asked for."""
        _, inner = self._shapes.core(schema)
        if self._shapes.is_empty(inner):
            return self._made("null", Operation.NOTHING, 0)
        match inner:
            case Primitive():
                return self._made(inner.kind, *_PRIMITIVES[inner.kind])
            case Fixed():
                return self._made(inner.name.full, Operation.EXACTLY, inner.size)
            case Enum():
                return self._made(inner.name.full, Operation.ENUM, len(inner.symbols))
            case _:
                return self._with_children(inner)

    def _made(self, name: str, operation: Operation, argument: int) -> int:
        begins = self._begins.get(name)
        if begins is None:
            begins = self._begins[name] = len(self.code)
            self.code += (operation, argument)
        return begins

    def _with_children(self, schema: Array | Map | Union | Record) -> int:
        name = schema.name.full if isinstance(schema, Record) else id(schema)
        begins = self._begins.get(name)
        if begins is None:
            # Its place is known before its children are, which may lead back to it.
            begins = self._begins[name] = len(self.code)
            head, children = self._head(schema)
            self.code += head
            first = len(self.code)
            self.code += [0] * len(children)
            for at, child in enumerate(children):
                self.code[first + at] = self.node(child)
        return begins

    def _head(self, schema: Array | Map | Union | Record) -> tuple[list[int], list[Schema]]:
        match schema:
            case Array():
                return [Operation.ARRAY], [schema.items]
            case Map():
                return [Operation.MAP], [schema.values]
            case Union():
                return [Operation.UNION, len(schema.branches)], list(schema.branches)
            case Record():
                fields = [each.schema for each in self._shapes.fields(schema)]
                return [Operation.RECORD, len(fields)], fields
