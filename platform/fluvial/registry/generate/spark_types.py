"""
The Spark type and the Delta table of an Avro record, as Spark's own Avro reader maps them.

A time of day stays the number that it is on the wire (ms or µs since midnight), as Spark has no type for it, and a
duration its twelve bytes (months, days, ms: three little-endian numbers).
"""

from collections.abc import Mapping
from typing import Any

from fluvial.errors import FluvialError

Json = dict[str, Any]

_PLAIN = {
    "null": "void",
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}
# Unions of numbers of which one holds the other are read as that one.
_WIDER = {frozenset({"integer", "long"}): "long", frozenset({"float", "double"}): "double"}

_SQL = {
    "integer": "INT",
    "long": "BIGINT",
    "boolean": "BOOLEAN",
    "float": "FLOAT",
    "double": "DOUBLE",
    "binary": "BINARY",
    "string": "STRING",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "void": "VOID",
}
_CLASSES = {name: f"{name.title().replace('_Ntz', 'NTZ')}Type()" for name in _SQL if name != "void"} | {
    "void": "NullType()"
}


class GenerateError(FluvialError):
    """A schema that has no such form."""


def struct_type_json(schema: Any) -> Json:
    """The `StructType` of a record in the JSON that `StructType.fromJson` reads; raises GenerateError."""
    if not isinstance(schema, Mapping) or schema.get("type") not in {"record", "error"}:
        raise GenerateError("a table's columns are the fields of a record, and this schema is none")
    return _record(schema, {}, ())


def struct_type_source(schema: Any, name: str = "SCHEMA") -> str:
    """The `StructType` of a record as Python source."""
    return f"from pyspark.sql.types import *  # noqa: F403\n\n{name} = {_source(struct_type_json(schema), '')}\n"


def delta_ddl(schema: Any, table: str) -> str:
    """The statement that makes a Delta table for a record's values: NOT NULL where the contract requires a value."""
    struct = struct_type_json(schema)
    lines = []
    for field in struct["fields"]:
        comment = field["metadata"].get("comment")
        required = "" if field["nullable"] else " NOT NULL"
        told = "" if not comment else f" COMMENT {_quoted(comment)}"
        lines.append(f"  `{field['name']}` {_sql(field['type'])}{required}{told}")
    doc = schema.get("doc")
    about = f"\nCOMMENT {_quoted(doc)}" if doc else ""
    columns = ",\n".join(lines)
    named = ".".join(f"`{part}`" for part in table.split("."))
    return f"CREATE TABLE {named} (\n{columns}\n)\nUSING DELTA{about}"


def _record(schema: Mapping[str, Any], named: dict[str, Any], above: tuple[str, ...]) -> Json:
    name = _full_name(schema, above)
    fields = []
    named[schema["name"]] = named[name] = schema
    for each in schema["fields"]:
        data_type, nullable = _type(each["type"], named, (*above, name))
        metadata = {"comment": each["doc"]} if each.get("doc") else {}
        fields.append({"name": each["name"], "type": data_type, "nullable": nullable, "metadata": metadata})
    return {"type": "struct", "fields": fields}


def _full_name(schema: Mapping[str, Any], above: tuple[str, ...]) -> str:
    if "." in schema["name"]:
        return str(schema["name"])
    space = schema.get("namespace", above[-1].rpartition(".")[0] if above else "")
    return f"{space}.{schema['name']}" if space else str(schema["name"])


def _type(schema: Any, named: dict[str, Any], above: tuple[str, ...]) -> tuple[Any, bool]:  # noqa: PLR0911, PLR0912 (one a case)
    """The Spark type of a schema, and whether it may be null."""
    match schema:
        case list():
            return _union(schema, named, above)
        case str():
            if schema in _PLAIN:
                return _PLAIN[schema], schema == "null"
            known = named.get(schema)
            if known is None:
                raise GenerateError(f"the type {schema} is defined in another schema; give one that holds all it uses")
            return _type(known, named, above)
        case {"type": "record" | "error"}:
            if _full_name(schema, above) in above:
                raise GenerateError(f"the record {schema['name']} contains itself, which no table's column can")
            return _record(schema, named, above), False
        case {"type": "enum"}:
            named[schema["name"]] = named[_full_name(schema, above)] = schema
            return "string", False
        case {"type": "array", "items": items}:
            element, nullable = _type(items, named, above)
            return {"type": "array", "elementType": element, "containsNull": nullable}, False
        case {"type": "map", "values": values}:
            value, nullable = _type(values, named, above)
            return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": nullable}, False
        case {"type": "bytes" | "fixed" as kind}:
            if kind == "fixed":
                named[schema["name"]] = named[_full_name(schema, above)] = schema
            if schema.get("logicalType") == "decimal":
                return f"decimal({schema['precision']},{schema.get('scale', 0)})", False
            return "binary", False
        case {"type": str(kind)} if kind in _PLAIN:
            return _LOGICAL.get((kind, str(schema.get("logicalType"))), _PLAIN[kind]), kind == "null"
        case {"type": inner}:
            return _type(inner, named, above)
        case _:
            raise GenerateError(f"{schema!r} is no Avro type")


def _union(branches: list[Any], named: dict[str, Any], above: tuple[str, ...]) -> tuple[Any, bool]:
    rest = [each for each in branches if each not in ("null", {"type": "null"})]
    nullable = len(rest) < len(branches)
    types = [_type(each, named, above)[0] for each in rest]
    if not types:
        return "void", True
    if len(types) == 1:
        return types[0], nullable
    if all(isinstance(each, str) for each in types) and (wider := _WIDER.get(frozenset(types))):
        return wider, nullable
    members = [
        {"name": f"member{number}", "type": each, "nullable": True, "metadata": {}} for number, each in enumerate(types)
    ]
    return {"type": "struct", "fields": members}, nullable


def _sql(data_type: Any, *, constrained: bool = True) -> str:
    """A type in SQL; Delta takes no NOT NULL inside arrays and maps, which are not `constrained`."""
    match data_type:
        case str():
            return _SQL.get(data_type, data_type.upper())
        case {"type": "array", "elementType": element}:
            return f"ARRAY<{_sql(element, constrained=False)}>"
        case {"type": "map", "valueType": value}:
            return f"MAP<STRING, {_sql(value, constrained=False)}>"
        case _:
            return f"STRUCT<{', '.join(_sql_field(each, constrained) for each in data_type['fields'])}>"


def _sql_field(field: Json, constrained: bool) -> str:
    required = " NOT NULL" if constrained and not field["nullable"] else ""
    return f"`{field['name']}`: {_sql(field['type'], constrained=constrained)}{required}"


def _source(data_type: Any, indent: str) -> str:
    match data_type:
        case str():
            return _CLASSES.get(data_type) or f"{data_type[0].upper()}{data_type[1:].replace('(', 'Type(')}"
        case {"type": "array", "elementType": element, "containsNull": nullable}:
            return f"ArrayType({_source(element, indent)}, {nullable})"
        case {"type": "map", "valueType": value, "valueContainsNull": nullable}:
            return f"MapType(StringType(), {_source(value, indent)}, {nullable})"
        case _:
            inner = f"{indent}    "
            lines = []
            for each in data_type["fields"]:
                metadata = f", {each['metadata']!r}" if each["metadata"] else ""
                shown = _source(each["type"], inner)
                lines.append(f"{inner}StructField({each['name']!r}, {shown}, {each['nullable']}{metadata}),\n")
            return f"StructType([\n{''.join(lines)}{indent}])"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
