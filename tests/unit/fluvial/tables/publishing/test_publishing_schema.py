"""The contract of a published table: a schema that Avro takes, and one that may follow the last."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from fluvial.tables.declare.declarations import DeclarationError
from fluvial.tables.publishing.avro_schema import published_columns, value_schema


def column(name: str, of_type: Any) -> dict[str, Any]:
    return {"name": name, "type": of_type, "nullable": True, "metadata": {}}


EVERYTHING = {
    "id": "string",
    "flag": "boolean",
    "small": "byte",
    "short": "short",
    "number": "integer",
    "big": "long",
    "ratio": "float",
    "share": "double",
    "raw": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "price": "decimal(12,2)",
    "tags": {"type": "array", "elementType": "string", "containsNull": True},
    "counts": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
    "place": {"type": "struct", "fields": [column("city", "string"), column("lat", "double")]},
    "places": {
        "type": "array",
        "elementType": {"type": "struct", "fields": [column("city", "string")]},
        "containsNull": False,
    },
}


def test_every_type_of_spark_that_avro_has_goes_there_and_back() -> None:
    schema = value_schema("aircraft-state", "id", [column(*each) for each in EVERYTHING.items()])
    assert schema["fields"][0] == {"name": "id", "type": "string"}
    assert schema["fluvial.key"] == "id"
    value = {
        "id": "x",
        "flag": True,
        "small": 1,
        "short": 2,
        "number": 3,
        "big": 1 << 40,
        "ratio": 0.5,
        "share": 0.25,
        "raw": b"\0",
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5, 6),
        "price": Decimal("12.34"),
        "tags": ["a", None],
        "counts": {"a": 1},
        "place": {"city": "c", "lat": None},
        "places": [{"city": "d"}],
    }
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    for sent in (value, {**dict.fromkeys(value), "id": "y"}):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, sent)
        body.seek(0)
        assert fastavro.schemaless_reader(body, parsed) == sent


@pytest.mark.parametrize(
    "of_type",
    ["interval day to second", {"type": "map", "keyType": "long", "valueType": "long", "valueContainsNull": True}],
)
def test_a_column_that_avro_does_not_have_is_named(of_type: Any) -> None:
    with pytest.raises(DeclarationError, match=r"column odd is .*Avro does not have"):
        value_schema("t", "id", [column("id", "string"), column("odd", of_type)])


def test_columns_of_fluvial_stay_at_home() -> None:
    assert published_columns(["id", "n", "_fold", "_offset"]) == ["id", "n"]
