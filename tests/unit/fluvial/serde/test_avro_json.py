"""JSON to Avro and back, held against fastavro's own reading of the bytes."""

import io
import json
from typing import Any

import fastavro
import pytest

from fluvial.serde.avro_json import MismatchError, convert, render

SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "local_at", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "raw", "type": "bytes"},
            {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "weights", "type": {"type": "array", "items": "double"}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {"name": "next_code", "type": ["null", "shop.Code"], "default": None},
            {"name": "mixed", "type": ["null", "long", "string"], "default": None},
        ],
    }
)

ORDER: dict[str, Any] = {
    "id": 9_007_199_254_740_993,
    "note": "grüße",
    "price": "12.50",
    "at": "2013-01-01T05:15:00.125000Z",
    "local_at": "2013-01-01T05:15:00.000001",
    "day": "2013-01-01",
    "time": "05:15:00",
    "raw": "AP8=",
    "code": "AQI=",
    "state": "PAID",
    "weights": [1.5, 2.0],
    "tags": {"a": "b"},
    "next_code": "AwQ=",
    "mixed": "text",
}


def through_avro(value: Any) -> Any:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, convert(SCHEMA, value))
    out.seek(0)
    return json.loads(json.dumps(render(fastavro.schemaless_reader(out, SCHEMA, None))))


def test_what_goes_in_comes_out() -> None:
    assert through_avro(ORDER) == ORDER


def test_defaults_fill_what_is_left_out_and_numbers_are_taken_for_logical_types() -> None:
    short = {name: value for name, value in ORDER.items() if name not in ("note", "next_code", "mixed")}
    short |= {"at": 1_357_017_300_125, "price": 12.5, "weights": [1]}
    assert through_avro(short) == ORDER | {"note": None, "next_code": None, "mixed": None, "weights": [1.0]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "1"}, "id: '1' is not a whole number of 64 bits"),
        ({"id": 1 << 63}, "id: .* is not a whole number of 64 bits"),
        ({"id": True}, "id: True is not"),
        ({"note": 3}, "note: 3 is not a string"),
        ({"price": "dear"}, "price: 'dear' is no decimal"),
        ({"at": "yesterday"}, "at: 'yesterday' is no ISO 8601 timestamp"),
        ({"day": "2013-13-01"}, "day: .* is no ISO 8601 date"),
        ({"raw": "###"}, "raw: '###' is not base64"),
        ({"code": "AQ=="}, "code: 'AQ==' is not 2 bytes"),
        ({"state": "LOST"}, "state: 'LOST' is not one of NEW, PAID"),
        ({"weights": [1.0, "x"]}, r"weights\[1\]: 'x' is not a number"),
        ({"tags": {"a": 1}}, r"tags\.a: 1 is not a string"),
        ({"mixed": []}, r"mixed: \[\] fits no branch"),
        ({"colour": 1}, "colour: the schema has no such field"),
    ],
)
def test_a_mismatch_names_its_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(MismatchError, match=says):
        convert(SCHEMA, ORDER | change)


def test_a_missing_field_without_default_is_named() -> None:
    with pytest.raises(MismatchError, match="state: is missing"):
        convert(SCHEMA, {name: value for name, value in ORDER.items() if name != "state"})


def test_a_value_that_is_no_object_is_refused() -> None:
    with pytest.raises(MismatchError, match=r"the value: \[\] is not an object"):
        convert(SCHEMA, [])
