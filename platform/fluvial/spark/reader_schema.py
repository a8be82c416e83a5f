"""
The schema that the rows of a table are read as: the newest version of a contract, and what earlier versions had.

A table only widens. A field that the newest version no longer has stays a column, nullable where it had no default; an
alias, once declared, holds for all later versions. So what a table looks like follows from the versions alone, and not
from when each of them was first read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fluvial.registry.formats.avro.parse import parse
from fluvial.registry.formats.avro.text import canonical
from fluvial.registry.formats.avro.types import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Schema,
    Union,
    children,
)

_NULL = Primitive(kind="null")


def reader_schema(versions: Sequence[str]) -> str:
    """
    Merge the texts of a record schema's versions, in ascending order with the one to read as last, to one schema.
    """
    *earlier, newest = versions
    if not earlier:
        return newest
    merged = _record(earlier[0])
    for text in (*earlier[1:], newest):
        merged = _Merge(merged, _record(text)).result
    return canonical(merged)


def carried(writer: Record, field: Field) -> Field | None:
    """
    The field of the writer's schema that a reader's field is filled from: by its name, or else by its first alias.
    """
    names = (field.name, *field.aliases)
    return next((found for found in map(writer.field_named, names) if found is not None), None)


def _record(text: str) -> Record:
    schema = parse(text).schema
    assert isinstance(schema, Record), "a contract is a record"
    return schema


class _Merge:
    """A version laid over what came before it; named types are paired by their names, and the outermost records."""

    def __init__(self, old: Record, new: Record) -> None:
        self._old = {each.name.full: each for each in _named(old)}
        self._new = {each.name.full: each for each in _named(new)}
        self._partners = {new.name.full: old}
        self._made: dict[str, Record] = {}
        self.result = self._merged(new)

    def _merged(self, record: Record) -> Record:
        made = self._made.get(record.name.full)
        if made is None:
            # Entered before it is filled: it may contain itself.
            old = self._partner(record)
            # Aliases of fields hold for writers of the same record only, so that its older names are aliases as well.
            known = (*record.aliases, *(() if old is None else (old.name, *old.aliases)))
            aliases = tuple(each for each in dict.fromkeys(known) if each != record.name)
            made = self._made[record.name.full] = replace(record, fields=[], aliases=aliases)
            made.fields.extend(self._fields(record, old))
        return made

    def _fields(self, record: Record, old: Record | None) -> Iterator[Field]:
        names = {field.name for field in record.fields}
        gone = {} if old is None else {field.name: field for field in old.fields}
        for field in record.fields:
            before = None if old is None else carried(old, field)
            aliases: tuple[str, ...] = field.aliases
            if before is not None:
                aliases += (before.name, *before.aliases)
            for name in (field.name, *field.aliases):
                gone.pop(name, None)
            yield replace(field, schema=self._type(field.schema), aliases=_without(aliases, names))
        for field in gone.values():
            schema = self._type(field.schema)
            if not field.has_default:
                schema, field = _nullable(schema), replace(field, default=None)  # noqa: PLW2901
            yield replace(field, schema=schema, aliases=_without(field.aliases, names))

    def _partner(self, record: Record) -> Record | None:
        names = (record.name.full, *(alias.full for alias in record.aliases))
        found = self._partners.get(record.name.full) or next(filter(None, map(self._old.get, names)), None)
        return found if isinstance(found, Record) else None

    def _type(self, schema: Schema) -> Schema:
        match schema:
            case Array():
                return replace(schema, items=self._type(schema.items))
            case Map():
                return replace(schema, values=self._type(schema.values))
            case Union():
                return Union(branches=tuple(map(self._type, schema.branches)))
            case Record() | Enum() | Fixed():
                # Of a type that both versions define, the newer definition.
                found = self._new.get(schema.name.full, schema)
                return self._merged(found) if isinstance(found, Record) else found
            case _:
                return schema


def _named(schema: Schema) -> Iterator[Named]:
    seen: set[int] = set()
    todo = [schema]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Named):
            yield each
        todo.extend(children(each))


def _without(aliases: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    return tuple(alias for alias in dict.fromkeys(aliases) if alias not in names)


def _nullable(schema: Schema) -> Schema:
    branches = schema.branches if isinstance(schema, Union) else (schema,)
    return Union(branches=(_NULL, *(each for each in branches if each.kind != "null")))
