"""
What a newer contract makes of the rows that a table has: pure, from the schemas alone.

A row holds what its record carried, resolved to the reader schema that the table had then. What the newer reader
schema would make of the record follows from that, field by field and for each writer's schema: the stored value, cast
where a type was promoted (Avro specification, "Schema Resolution"), or the newer default where the record carries
nothing. :class:`NotInTableError` names what does not follow, because the older reader schema left it out of the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fluvial.errors import FluvialError
from fluvial.registry.formats.avro.parse import parse
from fluvial.registry.formats.avro.text import canonical
from fluvial.registry.formats.avro.types import Array, Enum, Field, Fixed, Map, Primitive, Record, Schema, Union
from fluvial.spark.reader_schema import carried

_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_INTEGERS = {"int", "long"}
_LOGICAL = ("logicalType", "precision", "scale")


class NotInTableError(FluvialError):
    """
    What a newer contract wants of older records is not in the table's rows; `field` is its path in the contract.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(f"{field} {reason}")


@dataclass(frozen=True, slots=True)
class Keep:
    """The value as it is, or cast to the column's new type."""

    cast: bool = False


@dataclass(frozen=True, slots=True)
class Default:
    """The reader's default: of field `name` of the record schema `schema`, as JSON, that has this field alone."""

    name: str
    schema: str


@dataclass(frozen=True, slots=True)
class Struct:
    """A record: its fields' names and where each comes from within the stored one."""

    fields: tuple[tuple[str, "Source"], ...]


@dataclass(frozen=True, slots=True)
class Items:
    """Each item of an array, or value of a map."""

    value: "Value"
    is_map: bool


@dataclass(frozen=True, slots=True)
class Symbols:
    """An enum: `default` where the symbol is none of these."""

    known: tuple[str, ...]
    default: str


Value = Keep | Default | Struct | Items | Symbols


@dataclass(frozen=True, slots=True)
class Source:
    """Where a column's value comes from: a column of the table, None for none, and what becomes of it."""

    stored: str | None
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One column of the newer reader schema: its source by the id of the schema that a record was written with.

    Rows of no schema (a tombstone, a row that was adopted) keep what the table's column `stored` holds.
    """

    name: str
    sources: Mapping[int, Source]
    stored: str | None

    @property
    def is_unchanged(self) -> bool:
        """Whether it holds in all rows what it held."""
        same = Source(self.name, Keep())
        return self.stored == self.name and all(source == same for source in self.sources.values())

    @property
    def is_empty(self) -> bool:
        """Whether it is new and null in all rows, as a column that is added to a Delta table is."""
        return self.stored is None and all(
            isinstance(source.value, Default) and _default_of(source.value) is None for source in self.sources.values()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """
    The columns of the newer reader schema, and which of the older ones are no longer there by their names.
    """

    columns: tuple[Column, ...]
    renamed: tuple[str, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether the table is already what the newer contract makes of it."""
        return not self.renamed and all(column.is_unchanged for column in self.columns)

    @property
    def only_adds_nulls(self) -> bool:
        """Whether new columns are all that comes, null in every row that is there."""
        return not self.renamed and all(column.is_unchanged or column.is_empty for column in self.columns)

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the columns that hold something else, or come."""
        return tuple(column.name for column in self.columns if not column.is_unchanged)


def evolution(
    old: str, new: str, writers: Mapping[int, str], *, only: Callable[[str], bool] = lambda _name: True
) -> Evolution:
    """
    What becomes of rows that were read as the schema `old` when they are to be as if read as `new`.

    `writers` are the schemas, by their ids, that records of these rows may have been written with; `only` says which
    columns are asked about. Raises :class:`NotInTableError`.
    """
    stored, wanted = _record(old), _record(new)
    written = {identity: _record(text) for identity, text in writers.items()}
    try:
        columns = tuple(_column(field, stored, written) for field in wanted.fields if only(field.name))
    except RecursionError:
        raise NotInTableError(wanted.name.full, "contains itself") from None
    names = {field.name for field in wanted.fields}
    return Evolution(columns=columns, renamed=tuple(each.name for each in stored.fields if each.name not in names))


def _column(field: Field, stored: Record, written: Mapping[int, Record]) -> Column:
    sources = {identity: _source(field, stored, writer, field.name) for identity, writer in written.items()}
    column = carried(stored, field)
    return Column(name=field.name, sources=sources, stored=None if column is None else column.name)


def _source(field: Field, stored: Record, writer: Record, path: str) -> Source:
    sent = carried(writer, field)
    if sent is not None:
        column = next((each for each in stored.fields if carried(writer, each) is sent), None)
        if column is None:
            raise NotInTableError(path, "is in older records and was left out of the table")
        return Source(column.name, _value(sent.schema, column.schema, field.schema, path))
    if not field.has_default:
        raise NotInTableError(path, "is not in older records and has no default")
    column = carried(stored, field)
    if column is not None and carried(writer, column) is None and column.default == field.default:
        # What is stored is the same default, unless its own type has changed inside.
        try:
            value = _value(column.schema, column.schema, field.schema, path)
        except NotInTableError:
            value = None
        if isinstance(value, Keep):
            return Source(column.name, value)
    return Source(None, Default(field.name, canonical(_alone(field))))


def _alone(field: Field) -> Record:
    record = _record('{"type":"record","name":"Defaults","namespace":"fluvial","fields":[]}')
    record.fields.append(field)
    return record


def _default_of(value: Default) -> Any:
    return _record(value.schema).fields[0].default


def _value(sent: Schema, stored: Schema, wanted: Schema, path: str) -> Value:
    """What becomes of a value that was written as `sent`, is stored as read as `stored` and is to be as `wanted`."""
    branches = [_branches(each) for each in (sent, stored, wanted)]
    if any(len(each) > 1 for each in branches):
        if canonical(stored) == canonical(wanted):
            return Keep()
        raise NotInTableError(path, "is a union whose branches changed")
    if _is_nullable(sent) and not _is_nullable(wanted):
        raise NotInTableError(path, "may be null in older records and must not be")
    if not all(branches):  # a type of nothing but null
        return Keep(cast=canonical(stored) != canonical(wanted))
    return _branch_value(branches[0][0], branches[1][0], branches[2][0], path)


def _branch_value(sent: Schema, stored: Schema, wanted: Schema, path: str) -> Value:
    match sent, stored, wanted:
        case Record(), Record(), Record():
            return _struct(sent, stored, wanted, path)
        case Array(), Array(), Array():
            inner = _value(sent.items, stored.items, wanted.items, path)
            return inner if inner == Keep() else Items(inner, is_map=False)
        case Map(), Map(), Map():
            inner = _value(sent.values, stored.values, wanted.values, path)
            return inner if inner == Keep() else Items(inner, is_map=True)
        case Enum(), Enum(), Enum():
            return _symbols(sent, stored, wanted, path)
        case Fixed(), Fixed(), Fixed() if stored.size == wanted.size and _logical(stored) == _logical(wanted):
            return Keep()
        case Primitive(), Primitive(), Primitive():
            return _primitive(sent, stored, wanted, path)
    raise _changed(stored, wanted, path)


def _struct(sent: Record, stored: Record, wanted: Record, path: str) -> Value:
    fields = [(field.name, _source(field, stored, sent, f"{path}.{field.name}")) for field in wanted.fields]
    same = [(field.name, Source(field.name, Keep())) for field in stored.fields]
    return Keep() if fields == same else Struct(tuple(fields))


def _symbols(sent: Enum, stored: Enum, wanted: Enum, path: str) -> Value:
    if any(each in wanted.symbols and each not in stored.symbols for each in sent.symbols):
        raise NotInTableError(path, "has symbols that were stored as another")
    if all(each in wanted.symbols for each in (*sent.symbols, *filter(None, [stored.default]))):
        return Keep()
    if wanted.default is None:
        raise NotInTableError(path, "no longer has symbols that older records carry")
    return Symbols(wanted.symbols, wanted.default)


def _primitive(sent: Primitive, stored: Primitive, wanted: Primitive, path: str) -> Value:
    if (stored.kind, _logical(stored)) == (wanted.kind, _logical(wanted)):
        return Keep()
    if stored.kind == wanted.kind and _is_decimal(stored) and _is_decimal(wanted):
        if stored.props.get("scale", 0) == wanted.props.get("scale", 0):
            return Keep(cast=True)
        raise _changed(stored, wanted, path)
    logical = (*_logical(stored), *_logical(wanted))
    if any(each is not None for each in logical) or wanted.kind not in _PROMOTIONS.get(stored.kind, ()):
        raise _changed(stored, wanted, path)
    if stored.kind == "float" and sent.kind in _INTEGERS:
        raise NotInTableError(path, "was stored with the precision of a float")
    return Keep(cast=True)


def _changed(stored: Schema, wanted: Schema, path: str) -> NotInTableError:
    return NotInTableError(path, f"was {canonical(stored)} and is {canonical(wanted)}")


def _is_decimal(schema: Primitive) -> bool:
    return schema.props.get("logicalType") == "decimal"


def _logical(schema: Primitive | Fixed) -> tuple[Any, ...]:
    return tuple(schema.props.get(key) for key in _LOGICAL)


def _branches(schema: Schema) -> list[Schema]:
    return [each for each in (schema.branches if isinstance(schema, Union) else (schema,)) if each.kind != "null"]


def _is_nullable(schema: Schema) -> bool:
    return schema.kind == "null" or (isinstance(schema, Union) and any(each.kind == "null" for each in schema.branches))


def _record(text: str) -> Record:
    schema = parse(text).schema
    assert isinstance(schema, Record), "a contract is a record"
    return schema
