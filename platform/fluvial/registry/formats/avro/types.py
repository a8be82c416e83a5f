"""
Avro schemas as values.

One class per kind of schema, as parsed: named types know their full name, everything that the specification calls
metadata (`props`) is kept in the order it was written in. A record is filled after it exists, so that it can contain
itself; nothing changes it after parsing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name and the namespace it lives in (`""` for none)."""

    simple: str
    space: str

    @property
    def full(self) -> str:
        """The dotted name that is unique within a schema."""
        return f"{self.space}.{self.simple}" if self.space else self.simple

    def seen_from(self, space: str) -> str:
        """How this name is written where `space` is the enclosing namespace."""
        if self.space == space and self.simple not in PRIMITIVES:
            return self.simple
        return self.full


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Primitive:
    """A type without parts. `kind` is its Avro name."""

    kind: str
    props: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Array:
    """A sequence of `items`."""

    items: "Schema"
    props: Mapping[str, Any]
    kind: str = "array"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Map:
    """`values` under string keys."""

    values: "Schema"
    props: Mapping[str, Any]
    kind: str = "map"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Union:
    """One of several branches; no two of the same kind unless they are named."""

    branches: tuple["Schema", ...]
    kind: str = "union"

    @property
    def props(self) -> Mapping[str, Any]:
        """Unions carry no metadata."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Fixed:
    """Exactly `size` bytes."""

    name: Name
    size: int
    doc: str | None
    aliases: tuple[Name, ...]
    props: Mapping[str, Any]
    kind: str = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Enum:
    """One of `symbols`; `default` is what a reader takes for a symbol it does not know."""

    name: Name
    symbols: tuple[str, ...]
    default: str | None
    doc: str | None
    aliases: tuple[Name, ...]
    props: Mapping[str, Any]
    kind: str = "enum"


class NoDefault:
    """The type of `NO_DEFAULT`: a default of null is a default."""


NO_DEFAULT = NoDefault()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Field:
    """One field of a record; `order` is None when it was not declared otherwise than ascending."""

    name: str
    schema: "Schema"
    default: Any
    doc: str | None
    order: str | None
    aliases: tuple[str, ...]
    props: Mapping[str, Any]

    @property
    def has_default(self) -> bool:
        """Whether a reader can do without the writer having written this field."""
        return self.default is not NO_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Record:
    """Named fields in the order they are encoded in. `declared` is `record` or `error`."""

    name: Name
    declared: str
    doc: str | None
    aliases: tuple[Name, ...]
    props: dict[str, Any]
    fields: list[Field] = field(default_factory=list)
    kind: str = "record"

    def field_named(self, name: str) -> Field | None:
        """The field called `name`, aliases not considered."""
        return next((each for each in self.fields if each.name == name), None)


Named = Fixed | Enum | Record
Schema = Primitive | Array | Map | Union | Named


def children(schema: Schema) -> Iterator[Schema]:
    """The schemas directly inside `schema`."""
    match schema:
        case Array():
            yield schema.items
        case Map():
            yield schema.values
        case Union():
            yield from schema.branches
        case Record():
            yield from (each.schema for each in schema.fields)
        case _:
            return
