"""The contract that a Parquet file gives: types, what may be null, the key; and which files give none."""

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluvial.registry.formats.avro.parse import parse
from fluvial.registry.generate import GenerateError, record_of_parquet

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
COLUMNS: dict[str, Any] = {
    "station": pa.array(["SEA", "SFO"]),
    "kind": pa.array(["a", "a"]).dictionary_encode(),
    "note": pa.array(["wet", None]),
    "small": pa.array([1, 2], pa.uint16()),
    "wide": pa.array([1, 2], pa.uint32()),
    "share": pa.array([0.5, 1.5], pa.float32()),
    "price": pa.array(["1.50", "2.25"]).cast(pa.decimal128(9, 2)),
    "day": pa.array([date(2026, 3, 1)] * 2),
    "at": pa.array([AT, AT], pa.timestamp("ms", "UTC")),
    "fine": pa.array([AT, AT], pa.timestamp("ns", "UTC")),
    "local": pa.array([datetime(2026, 3, 1)] * 2, pa.timestamp("us")),
    "place": pa.array([{"lat": 1.0}, {"lat": None}]),
    "tags": pa.array([["x"], []]),
    "rest": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
}
OF_COLUMNS = {
    "station": "string",
    "kind": "string",
    "note": ["null", "string"],
    "small": "int",
    "wide": "long",
    "share": "float",
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "fine": {"type": "long", "logicalType": "timestamp-micros"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "place": [
        "null",
        {
            "type": "record",
            "name": "readings_place",
            "fields": [{"name": "lat", "type": ["null", "double"], "default": None}],
        },
    ],
    "tags": ["null", {"type": "array", "items": ["null", "string"]}],
    "rest": ["null", {"type": "map", "values": ["null", "long"]}],
}


def written(folder: Path, columns: dict[str, Any]) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_each_type_has_its_counterpart_and_a_column_without_nulls_is_required(tmp_path: Path) -> None:
    schema = record_of_parquet(written(tmp_path, COLUMNS), "readings", key="station")
    assert {field["name"]: field["type"] for field in schema["fields"]} == OF_COLUMNS
    assert schema["fluvial.key"] == "station"
    for field in schema["fields"]:
        assert ("default" in field) == isinstance(field["type"], list)
    parse(json.dumps(schema))


@pytest.mark.parametrize(
    ("columns", "key", "says"),
    [
        ({"temp max": [1.0]}, None, "the column 'temp max' has no name that Avro takes"),
        ({"n": pa.array([1], pa.uint64())}, None, "the column 'n' is of the type uint64, which has no counterpart"),
        ({"a": ["x"], "b": ["y"]}, "c", "has no column 'c' for the key; its columns are a, b"),
        ({"a": ["x", None]}, "a", "the column 'a' is no key: a key is a string or a whole number, and never null"),
    ],
)
def test_a_file_without_a_contract_says_which_column(tmp_path: Path, columns: Any, key: str | None, says: str) -> None:
    with pytest.raises(GenerateError, match=re.escape(says)):
        record_of_parquet(written(tmp_path, columns), "r", key=key)
