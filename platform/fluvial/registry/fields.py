"""The fields of an Avro schema as a reader wants them listed: their places, types, defaults and what they mean."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_STRUCTURE = frozenset({"name", "type", "doc", "default", "order", "aliases"})
DEPTH_MAX = 20
"""How far into nested records fields are listed; a record may contain itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldEntry:
    """
    One field. `path` leads to it from the record, as `lines[].price`; `default` is JSON text, None where there is none.

    `properties` is what the field or its type declares besides, such as `fluvial.min`.
    """

    path: str
    type: str
    nullable: bool
    default: str | None
    doc: str
    properties: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "field": self.path,
            "type": self.type,
            "nullable": self.nullable,
            "default": self.default,
            "doc": self.doc,
            "properties": dict(self.properties),
        }


def fields_of(schema: Any) -> list[FieldEntry]:
    """The fields of a schema's JSON in their order, those of nested records behind the field that holds them."""
    return list(_walk(schema, "", {}, 0))


def type_name(schema: Any, named: Mapping[str, Any]) -> str:  # noqa: PLR0911 (one return a case)
    """A type in a word or two: `decimal(9, 2)`, `array of string`, `enum of DEPARTED, ARRIVED`."""
    match schema:
        case str():
            known = named.get(schema)
            return schema if known is None else type_name(known, {})
        case list():
            return " or ".join(type_name(each, named) for each in schema if each != "null") or "null"
        case {"logicalType": "decimal", "precision": precision}:
            return f"decimal({precision}, {schema.get('scale', 0)})"
        case {"logicalType": str(logical)}:
            return logical
        case {"type": "array", "items": items}:
            return f"array of {type_name(items, named)}"
        case {"type": "map", "values": values}:
            return f"map of {type_name(values, named)}"
        case {"type": "enum", "symbols": symbols}:
            return f"enum of {', '.join(symbols)}"
        case {"type": "record" | "error", "name": name}:
            return f"record {name}"
        case {"type": "fixed", "size": size}:
            return f"fixed({size})"
        case {"type": inner}:
            return type_name(inner, named)
        case _:
            return str(schema)


def properties_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a field declares besides its structure, and what its type does."""
    inner = described.get("type")
    branches = inner if isinstance(inner, list) else [inner]
    found: dict[str, Any] = {}
    for branch in branches:
        if isinstance(branch, Mapping):
            found |= {key: value for key, value in branch.items() if "." in key}
    return found | {key: value for key, value in described.items() if key not in _STRUCTURE}


def _walk(schema: Any, prefix: str, named: dict[str, Any], depth: int) -> Iterator[FieldEntry]:
    record = schema
    if not isinstance(record, Mapping) or record.get("type") not in {"record", "error"} or depth > DEPTH_MAX:
        return
    named[record["name"]] = record
    if record.get("namespace"):
        named[f"{record['namespace']}.{record['name']}"] = record
    for each in record["fields"]:
        path = f"{prefix}{each['name']}"
        kind = each["type"]
        branches = kind if isinstance(kind, list) else [kind]
        for branch in branches:
            if isinstance(branch, Mapping) and "name" in branch:
                named[branch["name"]] = branch
        yield FieldEntry(
            path=path,
            type=type_name(kind, named),
            nullable="null" in branches,
            default=json.dumps(each["default"], ensure_ascii=False) if "default" in each else None,
            doc=each.get("doc") or "",
            properties=properties_of(each),
        )
        for branch in branches:
            yield from _inside(branch, path, named, depth + 1)


def _inside(schema: Any, path: str, named: dict[str, Any], depth: int) -> Iterator[FieldEntry]:
    match schema:
        case {"type": "array", "items": items}:
            yield from _inside(items, f"{path}[]", named, depth)
        case {"type": "map", "values": values}:
            yield from _inside(values, f"{path}{{}}", named, depth)
        case list():
            for branch in schema:
                yield from _inside(branch, path, named, depth)
        case _:
            yield from _walk(schema, f"{path}.", named, depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that two schemas differ in; `before` or `after` is None where it is added or removed."""

    path: str
    before: FieldEntry | None
    after: FieldEntry | None

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    @property
    def details(self) -> list[str]:
        """What is different, a line each."""
        if self.before is None or self.after is None:
            shown = self.before or self.after
            assert shown is not None, "a change has a before or an after"
            default = "" if shown.default is None else f", default {shown.default}"
            return [f"{shown.type}{' or null' if shown.nullable else ''}{default}"]
        before, after = self.before.as_json(), self.after.as_json()
        return [
            f"{name}: {_shown(before[name])} -> {_shown(after[name])}" for name in before if before[name] != after[name]
        ]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "field": self.path,
            "change": self.kind,
            "before": None if self.before is None else self.before.as_json(),
            "after": None if self.after is None else self.after.as_json(),
        }


def field_changes(before: Any, after: Any) -> list[FieldChange]:
    """The fields that two schemas' JSON differ in, in the order of the new one and then of what is gone."""
    old = {each.path: each for each in fields_of(before)}
    new = {each.path: each for each in fields_of(after)}
    paths = [*new, *(path for path in old if path not in new)]
    return [
        FieldChange(path=path, before=old.get(path), after=new.get(path))
        for path in paths
        if old.get(path) != new.get(path)
    ]


def _shown(value: Any) -> str:
    return "none" if value in (None, "", {}) else str(value)
