"""
Whether data written under one Avro schema can be read under another.

The rules are the specification's schema resolution as Apache Avro's `SchemaCompatibility` applies them, with its kinds
of difference, messages and locations, so that a verdict reads the same from either registry. Names are compared
without their namespace, aliases with it.
"""

from dataclasses import dataclass
from enum import StrEnum

from fluvial.registry.formats.avro.types import Array, Enum, Field, Fixed, Map, Named, Primitive, Record, Schema, Union
from fluvial.registry.formats.schema_kind import Steps, TooComplexError, distinct

# Two unions of n records make n² pairs; beyond this a comparison is refused instead of keeping everyone waiting.
STEPS_MAX = 400_000

PROMOTIONS = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}


class Fault(StrEnum):
    """The kinds of difference that keep a reader from reading."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One reason why the reader cannot read; `path` is a JSON pointer into the reader's schema."""

    fault: Fault
    path: str
    detail: str


def differences(reader: Schema, writer: Schema, steps: Steps | None = None) -> list[Difference]:
    """
    Everything that keeps `reader` from reading what `writer` writes; empty when it can.

    Raises `TooComplexError` for schemas made to be slow to compare.
    """
    try:
        return _Comparison(steps).compare(reader, writer, ("",))
    except RecursionError:
        raise TooComplexError("the schemas are nested too deeply to be compared") from None


class _Comparison:
    """
    Remembers the pairs already compared; a pair met inside itself counts as compatible.

    A difference that is reached on several paths is kept once, with the first: of d records with two fields of the
    next one there are 2^d paths.
    """

    def __init__(self, whole: Steps | None) -> None:
        self.known: dict[tuple[int, int], list[Difference]] = {}
        self.steps = Steps(STEPS_MAX, "compare", whole=whole)

    def compare(self, reader: Schema, writer: Schema, path: tuple[str, ...]) -> list[Difference]:
        if isinstance(reader, Primitive) and isinstance(writer, Primitive) and reader.kind == writer.kind:
            self.steps.spend()
            return []
        pair = (id(reader), id(writer))
        found = self.known.get(pair)
        if found is None:
            self.steps.spend(1 + _weight(reader) + _weight(writer))
            self.known[pair] = []
            found = self.known[pair] = distinct(self._differences(reader, writer, path))
        # Whoever asked for them puts them behind its own.
        self.steps.spend(1 + len(found))
        return found

    def _differences(self, reader: Schema, writer: Schema, path: tuple[str, ...]) -> list[Difference]:  # noqa: PLR0911 (one return a case)
        match reader, writer:
            case Union(), Union():
                return self._union_by_union(reader, writer, path)
            case Array(), Array():
                return self.compare(reader.items, writer.items, (*path, "items"))
            case Map(), Map():
                return self.compare(reader.values, writer.values, (*path, "values"))
            case Fixed(), Fixed():
                return _name(reader, writer, path) + _size(reader, writer, path)
            case Enum(), Enum():
                return _name(reader, writer, path) + _symbols(reader, writer, path)
            case Record(), Record():
                return _name(reader, writer, path) + self._fields(reader, writer, path)
            case _, Union():
                return [
                    each
                    for index, branch in enumerate(writer.branches)
                    for each in self.compare(reader, branch, (*path, str(index)))
                ]
            case Union(), _:
                if any(not self.compare(branch, writer, ("",)) for branch in reader.branches):
                    return []
                return [_missing_branch(writer, path)]
            case _:
                return _promoted(reader, writer, path)

    def _union_by_union(self, reader: Union, writer: Union, path: tuple[str, ...]) -> list[Difference]:
        return [
            _missing_branch(branch, (*path, str(index)))
            for index, branch in enumerate(writer.branches)
            if self.compare(reader, branch, ("",))
        ]

    def _fields(self, reader: Record, writer: Record, path: tuple[str, ...]) -> list[Difference]:
        found: list[Difference] = []
        written = {each.name: each for each in writer.fields}
        for index, field in enumerate(reader.fields):
            place = (*path, "fields", str(index))
            source = _source(field, written, reader)
            if source is not None:
                found += self.compare(field.schema, source.schema, (*place, "type"))
            elif field.has_default:
                continue
            elif isinstance(field.schema, Enum) and field.schema.default is not None:
                found += self.compare(field.schema, writer, (*place, "type"))
            else:
                found.append(_difference(Fault.READER_FIELD_MISSING_DEFAULT_VALUE, place, field.name))
        return found


def _weight(schema: Schema) -> int:
    """How much there is to look at in one type, besides the types inside it."""
    match schema:
        case Record():
            return len(schema.fields) + len(schema.aliases)
        case Enum():
            return len(schema.symbols) + len(schema.aliases)
        case Fixed():
            return len(schema.aliases)
        case _:
            return 0


def _source(field: Field, written: dict[str, Field], reader: Record) -> Field | None:
    """The writer's field that fills `field`: of the same name, or of one of its aliases."""
    sources = [written[name] for name in (field.name, *field.aliases) if name in written]
    if len(sources) > 1:
        raise TooComplexError(
            f"Reader record field {field.name} of {reader.name.full} matches multiple fields in writer record schema"
        )
    return sources[0] if sources else None


def _difference(fault: Fault, path: tuple[str, ...], detail: str) -> Difference:
    return Difference(fault=fault, path="/".join(path) or "/", detail=detail)


def _type_word(schema: Schema) -> str:
    return schema.kind.upper()


def _missing_branch(writer: Schema, path: tuple[str, ...]) -> Difference:
    return _difference(Fault.MISSING_UNION_BRANCH, path, f"reader union lacking writer type: {_type_word(writer)}")


def _promoted(reader: Schema, writer: Schema, path: tuple[str, ...]) -> list[Difference]:
    if writer.kind in PROMOTIONS.get(reader.kind, ()):
        return []
    detail = f"reader type: {_type_word(reader)} not compatible with writer type: {_type_word(writer)}"
    return [_difference(Fault.TYPE_MISMATCH, path, detail)]


def _name(reader: Named, writer: Named, path: tuple[str, ...]) -> list[Difference]:
    if reader.name.simple == writer.name.simple or writer.name in reader.aliases:
        return []
    return [_difference(Fault.NAME_MISMATCH, (*path, "name"), f"expected: {writer.name.full}")]


def _size(reader: Fixed, writer: Fixed, path: tuple[str, ...]) -> list[Difference]:
    if reader.size == writer.size:
        return []
    detail = f"expected: {writer.size}, found: {reader.size}"
    return [_difference(Fault.FIXED_SIZE_MISMATCH, (*path, "size"), detail)]


def _symbols(reader: Enum, writer: Enum, path: tuple[str, ...]) -> list[Difference]:
    missing = sorted(set(writer.symbols) - set(reader.symbols))
    if not missing or reader.default is not None:
        return []
    return [_difference(Fault.MISSING_ENUM_SYMBOLS, (*path, "symbols"), f"[{', '.join(missing)}]")]
