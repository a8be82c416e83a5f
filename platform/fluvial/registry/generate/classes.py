"""Python dataclasses of an Avro record: frozen, with enums, logical types and what the contract says of each field."""

import json
import keyword
from collections.abc import Mapping
from typing import Any

from fluvial.registry.generate.spark_types import GenerateError

_PLAIN = {
    "null": "None",
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "bytes": "bytes",
    "string": "str",
}
_LOGICAL = {
    "decimal": "Decimal",
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    "timestamp-millis": "datetime",
    "timestamp-micros": "datetime",
    "local-timestamp-millis": "datetime",
    "local-timestamp-micros": "datetime",
    "uuid": "UUID",
}
_WRITTEN_ALIKE = frozenset({"bool", "int", "float", "str"})
_IMPORTS = (
    ("from dataclasses import ", ("dataclass", "field")),
    ("from datetime import ", ("date", "datetime", "time")),
    ("from decimal import ", ("Decimal",)),
    ("from enum import ", ("StrEnum",)),
    ("from uuid import ", ("UUID",)),
)


def dataclasses_source(schema: Any) -> str:
    """
    A module with a class for the record and for every record and enum in it, what is used first.

    Timestamps are aware datetimes, local timestamps naive ones; a duration is its twelve bytes. A field whose name is a
    word of Python's gets an underscore. Raises GenerateError for a schema that is no record.
    """
    if not isinstance(schema, Mapping) or schema.get("type") not in {"record", "error"}:
        raise GenerateError("a class is made of a record, and this schema is none")
    module = _Module()
    module.type_of(schema)
    return module.text()


class _Module:
    """The classes so far, and what they import."""

    def __init__(self) -> None:
        self._classes: list[str] = []
        self._names: dict[str, str] = {}
        self._enums: dict[str, tuple[str, ...]] = {}
        self._used = {"dataclass"}

    def text(self) -> str:
        imports = []
        for start, names in _IMPORTS:
            used = [name for name in names if name in self._used]
            if used:
                imports.append(f"{start}{', '.join(used)}\n")
        return f"from __future__ import annotations\n\n{''.join(imports)}\n\n{chr(10).join(self._classes)}"

    def type_of(self, schema: Any) -> str:  # noqa: PLR0911 (one return a case)
        """The annotation of a schema."""
        match schema:
            case list():
                words = [self.type_of(each) for each in sorted(schema, key=lambda each: each == "null")]
                return " | ".join(dict.fromkeys(words))
            case str():
                return _PLAIN.get(schema) or self._names[schema.rpartition(".")[2]]
            case {"type": "record" | "error" | "enum" as kind, "name": str(name)}:
                simple = name.rpartition(".")[2]
                if simple not in self._names:
                    self._names[simple] = _identifier(simple)
                    self._enum(schema, simple) if kind == "enum" else self._record(schema, simple)
                return self._names[simple]
            case {"type": "array", "items": items}:
                return f"list[{self.type_of(items)}]"
            case {"type": "map", "values": values}:
                return f"dict[str, {self.type_of(values)}]"
            case {"logicalType": str(logical)} if logical in _LOGICAL:
                self._named_fixed(schema, _LOGICAL[logical])
                self._used.add(_LOGICAL[logical])
                return _LOGICAL[logical]
            case {"type": "fixed"}:
                self._named_fixed(schema, "bytes")
                return "bytes"
            case {"type": inner}:
                return self.type_of(inner)
            case _:
                raise GenerateError(f"{schema!r} is no Avro type")

    def _named_fixed(self, schema: Mapping[str, Any], word: str) -> None:
        if "name" in schema:
            self._names[schema["name"].rpartition(".")[2]] = word

    def _enum(self, schema: Mapping[str, Any], name: str) -> None:
        self._used.add("StrEnum")
        self._enums[self._names[name]] = tuple(schema["symbols"])
        symbols = "".join(f'    {_identifier(each)} = "{each}"\n' for each in schema["symbols"])
        self._classes.append(f"class {self._names[name]}(StrEnum):\n{_docstring(schema.get('doc'))}{symbols}\n")

    def _record(self, schema: Mapping[str, Any], name: str) -> None:
        lines = []
        for each in schema["fields"]:
            annotation = self.type_of(each["type"])
            lines.append(f"    {_identifier(each['name'])}: {annotation}{self._default(each, annotation)}\n")
            if each.get("doc"):
                lines.append(f"    {json.dumps(each['doc'], ensure_ascii=False)}\n")
        decorator = "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        body = "".join(lines) or "    pass\n"
        self._classes.append(f"{decorator}class {self._names[name]}:\n{_docstring(schema.get('doc'))}{body}\n")

    def _default(self, described: Mapping[str, Any], annotation: str) -> str:
        if "default" not in described:
            return ""
        default, first = described["default"], annotation.partition(" | ")[0]
        if default is None:
            return " = None"
        if first in self._enums and default in self._enums[first]:
            return f" = {first}.{_identifier(default)}"
        if default in ([], {}) and first.startswith(("list[", "dict[")):
            self._used.add("field")
            return f" = field(default_factory={first.partition('[')[0]})"
        # Of anything else the default is written for Avro and not for Python: the field has to be given.
        return f" = {default!r}" if first in _WRITTEN_ALIKE else ""


def _identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _docstring(doc: str | None) -> str:
    return f"    {json.dumps(doc, ensure_ascii=False)}\n\n" if doc else ""
