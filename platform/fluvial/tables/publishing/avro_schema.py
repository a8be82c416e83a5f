"""
The Avro schema of a table's rows, as the contract of the topic that they are published to.

Every field but the key may be null and is null by default, so that a column more or less is a compatible change.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fluvial.spark.warehouse import table_name_of
from fluvial.tables.declare.declarations import DeclarationError

_PLAIN: Mapping[str, Any] = {
    "string": "string",
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def published_columns(names: Iterable[str]) -> list[str]:
    """
    The columns that a record has: those that are fluvial's own, whose names begin with an underscore, stay at home.
    """
    return [name for name in names if not name.startswith("_")]


def value_schema(topic: str, key: str, fields: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """
    The schema of the records of `topic` for columns as Spark describes them in JSON (`StructType.jsonValue()`).

    Raises DeclarationError for a column of a type that Avro does not have.
    """
    return {
        "type": "record",
        "name": table_name_of(topic),
        "namespace": "fluvial.published",
        "fluvial.key": key,
        "fields": [_field(each, topic, required=each["name"] == key) for each in fields],
    }


def _field(column: Mapping[str, Any], path: str, *, required: bool = False) -> dict[str, Any]:
    name = column["name"]
    of_type = _type(column["type"], f"{path}.{name}")
    return {"name": name, "type": of_type} if required else {"name": name, "type": ["null", of_type], "default": None}


def _type(of_type: Any, path: str) -> Any:
    if isinstance(of_type, Mapping):
        match of_type["type"]:
            case "struct":
                # Every record of a schema needs a name of its own: the way to it is one.
                fields = [_field(each, path) for each in of_type["fields"]]
                return {"type": "record", "name": table_name_of(path), "fields": fields}
            case "array":
                items = _type(of_type["elementType"], f"{path}.item")
                return {"type": "array", "items": ["null", items] if of_type["containsNull"] else items}
            case "map" if of_type["keyType"] == "string":
                values = _type(of_type["valueType"], f"{path}.value")
                return {"type": "map", "values": ["null", values] if of_type["valueContainsNull"] else values}
    elif of_type in _PLAIN:
        return _PLAIN[of_type]
    elif decimal := _DECIMAL.fullmatch(of_type):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": int(decimal[1]),
            "scale": int(decimal[2]),
        }
    shown = of_type["type"] if isinstance(of_type, Mapping) else of_type
    raise DeclarationError(
        f"column {path.partition('.')[2]} is {shown}, which Avro does not have: publish a table that has it as text or "
        "in parts"
    )
