"""
Avro schema text to `types`, as strict as the reference implementation is for a schema it has not seen before.

The rules are those of the Avro specification 1.12 and, where it leaves room, of Apache Avro's `Schema.Parser` with
name and default validation on: names are checked, nothing is defined twice in two ways, defaults fit their type.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fluvial.registry.formats import json_text
from fluvial.registry.formats.avro import text as avro_text
from fluvial.registry.formats.avro.types import (
    NO_DEFAULT,
    PRIMITIVES,
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
from fluvial.registry.formats.schema_kind import Parsed, SchemaSyntaxError, Steps

# Twenty bytes of text can describe a level, so the text's size bounds nothing; each level costs four Python frames.
DEPTH_MAX = 100
NODES_MAX = 100_000
# A default of n values, each of which may be of m branches, takes n times m looks.
DEFAULT_STEPS_MAX = 200_000

NAME_START = re.compile(r"[A-Za-z_]")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
NAMED_KINDS = frozenset({"record", "error", "enum", "fixed"})
ORDERS = frozenset({"ascending", "descending", "ignore"})
SCHEMA_WORDS = frozenset(
    {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
)
ENUM_WORDS = SCHEMA_WORDS | {"default"}
FIELD_WORDS = frozenset({"default", "doc", "name", "order", "type", "aliases"})


class AvroSyntaxError(SchemaSyntaxError):
    """The text is not an Avro schema; `str()` says where it goes wrong."""


def parse(text: str, *, references: Sequence[str] = (), normalize: bool = False) -> Parsed:
    """
    Parse a schema. `references` are the texts of the schemas it may name, each before the ones that use it.

    Raises `AvroSyntaxError`, also for text that is nested too deeply or describes too many types.
    """
    parser = _Parser()
    try:
        named = [parser.parse(_json(each), space="") for each in references]
        schema = parser.parse(_json(text), space="")
        stored = avro_text.canonical(schema, references=named, normalize=normalize)
        stored.encode("utf-8")
        return Parsed(schema=schema, text=stored, types=parser.nodes)
    except RecursionError:
        # Metadata and defaults are JSON of any depth.
        raise AvroSyntaxError("nested too deeply") from None
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which no text that is stored can hold.
        raise AvroSyntaxError("holds half of a surrogate pair (\\ud800 to \\udfff)") from None


def _json(text: str) -> Any:
    try:
        return json_text.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise AvroSyntaxError(f"nested more than {DEPTH_MAX} levels deep") from None
    except json.JSONDecodeError as error:
        raise AvroSyntaxError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise AvroSyntaxError(f"not JSON: {error}") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def _excerpt(node: Any) -> str:
    """The JSON that an error message shows, cut so that hostile text does not fill a log."""
    try:
        text = avro_text.dump(node)
    except RecursionError:
        return "…"
    return text if len(text) <= 300 else text[:300] + "…"


class _Parser:
    """Holds the names defined so far."""

    def __init__(self) -> None:
        self.names: dict[str, Named] = {}
        self.depth = 0
        self.nodes = 0
        self.defaults = Steps(DEFAULT_STEPS_MAX, "hold their defaults against their types")

    def parse(self, node: Any, *, space: str) -> Schema:
        self.depth += 1
        self.nodes += 1
        if self.depth > DEPTH_MAX:
            raise AvroSyntaxError(f"nested more than {DEPTH_MAX} levels deep")
        if self.nodes > NODES_MAX:
            raise AvroSyntaxError(f"more than {NODES_MAX} types in one schema")
        try:
            match node:
                case str():
                    return Primitive(kind=node) if node in PRIMITIVES else self._named(node, space)
                case list():
                    return self._union(node, space)
                case dict():
                    return self._object(node, space)
                case _:
                    raise AvroSyntaxError(f"Schema not yet supported: {_excerpt(node)}")
        finally:
            self.depth -= 1

    def _named(self, word: str, space: str) -> Named:
        full = word if "." in word or not space else f"{space}.{word}"
        found = self.names.get(full.removeprefix(".")) or self.names.get(word)
        if found is None:
            raise AvroSyntaxError(f"Undefined schema: {full}")
        return found

    def _union(self, node: list[Any], space: str) -> Union:
        branches: list[Schema] = []
        seen: set[str] = set()
        for each in node:
            branch = self.parse(each, space=space)
            if isinstance(branch, Union):
                raise AvroSyntaxError(f"Nested union: {_excerpt(node)}")
            key = branch.name.full if isinstance(branch, Named) else branch.kind
            if key in seen:
                raise AvroSyntaxError(f"Duplicate in union:{key}")
            seen.add(key)
            branches.append(branch)
        return Union(branches=tuple(branches))

    def _object(self, node: dict[str, Any], space: str) -> Schema:
        kind = node.get("type")
        if not isinstance(kind, str):
            raise AvroSyntaxError(f"No type: {_excerpt(node)}")
        if kind in PRIMITIVES:
            return Primitive(kind=kind, props=_props(node, SCHEMA_WORDS))
        if kind in NAMED_KINDS:
            return self._definition(kind, node, space)
        if kind == "array":
            if node.get("items") is None:
                raise AvroSyntaxError(f"Array has no items type: {_excerpt(node)}")
            return Array(items=self.parse(node["items"], space=space), props=_props(node, SCHEMA_WORDS))
        if kind == "map":
            if node.get("values") is None:
                raise AvroSyntaxError(f"Map has no values type: {_excerpt(node)}")
            return Map(values=self.parse(node["values"], space=space), props=_props(node, SCHEMA_WORDS))
        return self._named(kind, space)

    def _definition(self, kind: str, node: dict[str, Any], space: str) -> Named:
        name = _name_of(node, space)
        doc = node["doc"] if isinstance(node.get("doc"), str) else None
        aliases = _aliases(node, name.space)
        known = self.names.get(name.full)
        defined: Named
        if kind == "fixed":
            size = node.get("size")
            if not isinstance(size, int) or isinstance(size, bool):
                raise AvroSyntaxError(f"Invalid or no size: {_excerpt(node)}")
            if not 0 <= size < 2**31:
                raise AvroSyntaxError(f"Malformed data. Length is negative or too large: {size}")
            defined = Fixed(name=name, size=size, doc=doc, aliases=aliases, props=_props(node, SCHEMA_WORDS))
            self.names[name.full] = defined
        elif kind == "enum":
            defined = _enum(node, name, doc, aliases)
            self.names[name.full] = defined
        else:
            defined = Record(name=name, declared=kind, doc=doc, aliases=aliases, props=_props(node, SCHEMA_WORDS))
            self.names[name.full] = defined
            self._fill(defined, node)
        if known is not None:
            if type(known) is not type(defined) or avro_text.outline(known) != avro_text.outline(defined):
                raise AvroSyntaxError(f"Can't redefine: {name.full}")
            # The same definition written twice means the first one, so that both places are one type.
            self.names[name.full] = known
            return known
        return defined

    def _fill(self, record: Record, node: dict[str, Any]) -> None:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise AvroSyntaxError(f"Record has no fields: {_excerpt(node)}")
        taken: set[str] = set()
        for each in fields:
            field = self._field(each, record.name.space)
            if field.name in taken:
                raise AvroSyntaxError(f"Duplicate field {field.name} in record {record.name.full}")
            taken.add(field.name)
            record.fields.append(field)

    def _field(self, node: Any, space: str) -> Field:
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            raise AvroSyntaxError(f"No field name: {_excerpt(node)}")
        name = node["name"]
        _check_name(name)
        if node.get("type") is None:
            raise AvroSyntaxError(f"No field type: {_excerpt(node)}")
        schema = self.parse(node["type"], space=space)
        default = node.get("default", NO_DEFAULT)
        if schema.kind in {"float", "double"} and isinstance(default, str):
            default = _number_in_text(default)
        if default is not NO_DEFAULT and not _Fit(self.defaults).fits(default, schema):
            raise AvroSyntaxError(
                f"Invalid default for field {name}: {_excerpt(default)} not a {_excerpt_schema(schema)}"
            )
        order = node.get("order")
        if order is not None and (not isinstance(order, str) or order.lower() not in ORDERS):
            raise AvroSyntaxError(f"Unknown order of field {name}: {_excerpt(order)}")
        aliases = node.get("aliases") or ()
        if not isinstance(aliases, list | tuple) or not all(isinstance(each, str) for each in aliases):
            raise AvroSyntaxError(f"aliases not an array: {_excerpt(node)}")
        return Field(
            name=name,
            schema=schema,
            default=default,
            doc=node["doc"] if isinstance(node.get("doc"), str) else None,
            order=order.lower() if order is not None and order.lower() != "ascending" else None,
            aliases=tuple(dict.fromkeys(aliases)),
            props=_props(node, FIELD_WORDS),
        )


def _excerpt_schema(schema: Schema) -> str:
    text = avro_text.canonical(schema)
    return text if len(text) <= 300 else text[:300] + "…"


def _props(node: Mapping[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in reserved}


def _check_name(name: str) -> None:
    if not name:
        raise AvroSyntaxError("Empty name")
    if not NAME.match(name):
        fault = "Illegal character in" if NAME_START.match(name) else "Illegal initial character"
        raise AvroSyntaxError(f"{fault}: {name[:300]}")


def _split(text: str, space: str) -> Name:
    """A name as written: dotted means its own namespace, otherwise `space`."""
    if "." in text:
        own, _, simple = text.rpartition(".")
        return Name(simple=simple, space=own)
    return Name(simple=text, space=space)


def _name_of(node: dict[str, Any], enclosing: str) -> Name:
    text = node.get("name")
    if not isinstance(text, str):
        raise AvroSyntaxError(f"No name in schema: {_excerpt(node)}")
    declared = node.get("namespace")
    name = _split(text, declared if isinstance(declared, str) else enclosing)
    _check_name(name.simple)
    for part in name.space.split(".") if name.space else ():
        try:
            _check_name(part)
        except AvroSyntaxError as error:
            raise AvroSyntaxError(f'Namespace part "{part[:300]}" is invalid: {error}') from None
    if name.full in PRIMITIVES:
        raise AvroSyntaxError(f"Schemas may not be named after primitives: {name.full}")
    return name


def _aliases(node: dict[str, Any], space: str) -> tuple[Name, ...]:
    aliases = node.get("aliases")
    if aliases is None:
        return ()
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise AvroSyntaxError(f"aliases not an array: {_excerpt(node)}")
    return tuple(dict.fromkeys(_split(each, space) for each in aliases))


def _enum(node: dict[str, Any], name: Name, doc: str | None, aliases: tuple[Name, ...]) -> Enum:
    symbols = node.get("symbols")
    if not isinstance(symbols, list):
        raise AvroSyntaxError(f"Enum has no symbols: {_excerpt(node)}")
    seen: set[str] = set()
    for each in symbols:
        if not isinstance(each, str):
            raise AvroSyntaxError(f"Illegal enum symbol: {_excerpt(each)}")
        _check_name(each)
        if each in seen:
            raise AvroSyntaxError(f"Duplicate enum symbol: {each}")
        seen.add(each)
    default = node.get("default")
    if default is not None and (not isinstance(default, str) or default not in seen):
        raise AvroSyntaxError(f"The Enum Default: {_excerpt(default)} is not in the enum symbol set: {symbols[:20]}")
    return Enum(
        name=name,
        symbols=tuple(symbols),
        default=default,
        doc=doc,
        aliases=aliases,
        props=_props(node, ENUM_WORDS),
    )


def _number_in_text(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


class _Fit:
    """Whether JSON values may be the default of one field. Each value is held against each type once."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._known: dict[tuple[int, int], bool] = {}

    def fits(self, value: Any, schema: Schema) -> bool:
        """Say whether `value` is of `schema`; for a union, of any of its branches."""
        self._steps.spend()
        if not isinstance(value, list | dict):
            return self._looked_at(value, schema)
        pair = (id(value), id(schema))
        known = self._known.get(pair)
        if known is None:
            known = self._known[pair] = self._looked_at(value, schema)
        return known

    def _looked_at(self, value: Any, schema: Schema) -> bool:
        match schema:
            case Union():
                return any(self.fits(value, branch) for branch in schema.branches)
            case Primitive():
                return _fits_primitive(value, schema.kind)
            case Fixed() | Enum():
                return isinstance(value, str)
            case Array():
                return isinstance(value, list) and all(self.fits(each, schema.items) for each in value)
            case Map():
                return isinstance(value, dict) and all(self.fits(each, schema.values) for each in value.values())
            case Record():
                self._steps.spend(len(schema.fields))
                return isinstance(value, dict) and all(
                    self.fits(value[each.name], each.schema) if each.name in value else each.has_default
                    for each in schema.fields
                )


def _fits_primitive(value: Any, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string" | "bytes":
            return isinstance(value, str)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31
        case "long":
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool)
