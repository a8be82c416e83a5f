"""
The one text under which an Avro schema is stored and compared: what Apache Avro's `Schema.toString()` writes.

Whitespace is gone, attributes stand in a fixed order, a primitive without metadata is just its name, a name is
written without its namespace where that is clear, and a type is spelled out only where it first occurs.
"""

import json
import math
from collections.abc import Mapping, Sequence
from json.encoder import py_encode_basestring
from typing import Any

from fluvial.registry.formats.avro.types import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Name,
    Named,
    Primitive,
    Record,
    Schema,
    Union,
)


def canonical(schema: Schema, *, references: Sequence[Schema] = (), normalize: bool = False) -> str:
    """
    The stored text of `schema`.

    Named types that `references` define are only named, never spelled out. `normalize` also puts metadata in order, so
    that schemas which differ in nothing a reader notices get one text.
    """
    writer = _Writer(normalize=normalize)
    for each in references:
        writer.schema(each, "")
    writer.out.clear()
    writer.schema(schema, "")
    return "".join(writer.out)


def outline(schema: Named) -> str:
    """The definition of one named type with every other named type by its full name: what makes two of them equal."""
    writer = _Writer(spell_out=False)
    writer.written.add(schema.name.full)
    writer.definition(schema, "")
    return "".join(writer.out)


def dump(value: Any) -> str:
    """JSON without whitespace, written the way the reference implementation writes it."""
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return "[" + ",".join(dump(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_string(key)}:{dump(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _string(text: str) -> str:
    quoted: str = py_encode_basestring(text)
    if "\\u" not in quoted:
        return quoted
    # Only control characters are escaped by number, and in upper case; a backslash that is text is doubled.
    parts = quoted.split("\\\\")
    return "\\\\".join(_upper_escapes(part) for part in parts)


def _upper_escapes(text: str) -> str:
    head, *rest = text.split("\\u")
    return head + "".join("\\u" + each[:4].upper() + each[4:] for each in rest)


def _number(value: float) -> str:
    """Java's `Double.toString`: plain between 1e-3 and 1e7, otherwise d.dddE±x."""
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        if "e" not in text:
            return text
    mantissa, _, exponent = f"{value!r}".partition("e")
    digits = mantissa.lstrip("-").replace(".", "")
    point = mantissa.lstrip("-").partition(".")[0]
    power = int(exponent or 0) + len(point) - 1
    stripped = digits.lstrip("0")
    power -= len(digits) - len(stripped)
    stripped = stripped.rstrip("0") or "0"
    sign = "-" if value < 0 else ""
    return f"{sign}{stripped[0]}.{stripped[1:] or '0'}E{power}"


class _Writer:
    """Appends the text of schemas to `out` and remembers which names are already spelled out."""

    def __init__(self, *, spell_out: bool = True, normalize: bool = False) -> None:
        self.out: list[str] = []
        self.spell_out = spell_out
        self.normalize = normalize
        self.written: set[str] = set()

    def schema(self, schema: Schema, space: str) -> None:
        match schema:
            case Primitive():
                self._primitive(schema)
            case Union():
                self.out.append("[")
                for index, branch in enumerate(schema.branches):
                    if index:
                        self.out.append(",")
                    self.schema(branch, space)
                self.out.append("]")
            case Array():
                self.out.append('{"type":"array","items":')
                self.schema(schema.items, space)
                self._props(schema.props)
                self.out.append("}")
            case Map():
                self.out.append('{"type":"map","values":')
                self.schema(schema.values, space)
                self._props(schema.props)
                self.out.append("}")
            case Fixed() | Enum() | Record():
                if not self.spell_out:
                    self.out.append(_string(schema.name.full))
                elif schema.name.full in self.written:
                    self.out.append(_string(schema.name.seen_from(space)))
                else:
                    self.written.add(schema.name.full)
                    self.definition(schema, space)

    def _primitive(self, schema: Primitive) -> None:
        if schema.props:
            self.out.append(f'{{"type":"{schema.kind}"')
            self._props(schema.props)
            self.out.append("}")
        else:
            self.out.append(f'"{schema.kind}"')

    def definition(self, schema: Named, space: str) -> None:
        kind = schema.declared if isinstance(schema, Record) else schema.kind
        self.out.append(f'{{"type":"{kind}","name":{_string(schema.name.simple)}')
        if schema.name.space != space:
            self.out.append(f',"namespace":{_string(schema.name.space)}')
        if schema.doc is not None and (schema.doc or not self.normalize):
            self.out.append(f',"doc":{_string(schema.doc)}')
        match schema:
            case Fixed():
                self.out.append(f',"size":{schema.size}')
            case Enum():
                self.out.append(f',"symbols":{dump(list(schema.symbols))}')
                if schema.default is not None:
                    self.out.append(f',"default":{_string(schema.default)}')
            case Record():
                self.out.append(',"fields":[')
                for index, field in enumerate(schema.fields):
                    if index:
                        self.out.append(",")
                    self._field(field, schema.name.space)
                self.out.append("]")
        self._props(schema.props)
        self._aliases(schema.aliases, schema.name.space)
        self.out.append("}")

    def _field(self, field: Field, space: str) -> None:
        self.out.append(f'{{"name":{_string(field.name)},"type":')
        self.schema(field.schema, space)
        if field.doc is not None:
            self.out.append(f',"doc":{_string(field.doc)}')
        if field.default is not NO_DEFAULT:
            self.out.append(f',"default":{dump(field.default)}')
        if field.order is not None:
            self.out.append(f',"order":"{field.order}"')
        if field.aliases:
            aliases = sorted(field.aliases) if self.normalize else list(field.aliases)
            self.out.append(f',"aliases":{dump(aliases)}')
        self._props(field.props)
        self.out.append("}")

    def _props(self, props: Mapping[str, Any]) -> None:
        for key in sorted(props, key=_normal_place) if self.normalize else props:
            value = props[key]
            self.out.append(f",{_string(key)}:{dump(value)}")

    def _aliases(self, aliases: tuple[Name, ...], space: str) -> None:
        if aliases:
            ordered = sorted(aliases, key=lambda name: name.full) if self.normalize else aliases
            self.out.append(f',"aliases":{dump([each.seen_from(space) for each in ordered])}')


def _normal_place(key: str) -> tuple[int, str]:
    """Where metadata stands in a normalized schema: the logical type and its parameters first, the rest by name."""
    words = ("logicalType", "precision", "scale")
    return (words.index(key) if key in words else len(words), key)
