"""
What is generated from a contract is what Spark and Delta make of it, and logical types come through whole.
"""

import datetime as dt
import json
from typing import Any

import pytest
from log_topic import framed
from logical_types import READ, SCHEMA, TYPES, WRITTEN

from fluvial.registry.generate import delta_ddl, struct_type_json, struct_type_source
from fluvial.spark.avro import Contract, decode, value_type

pytestmark = pytest.mark.spark

KAFKA = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"


def nullable(kind: Any) -> Any:
    """A type in JSON with null allowed everywhere, as Spark's reader declares it."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return {"type": "struct", "fields": [[each["name"], nullable(each["type"])] for each in fields]}
        case {"type": "array", "elementType": element}:
            return {"type": "array", "elementType": nullable(element)}
        case {"type": "map", "valueType": value}:
            return {"type": "map", "valueType": nullable(value)}
        case _:
            return kind


def test_logical_types_survive_from_a_producer_to_delta_and_back(spark: Any, tmp_path: Any) -> None:
    contract = Contract(subject="all-value", writers={7: json.dumps(SCHEMA)}, reader_id=7, reader=json.dumps(SCHEMA))
    assert nullable(struct_type_json(SCHEMA)) == nullable(value_type(spark, contract).jsonValue())
    scope: dict[str, Any] = {}
    exec(struct_type_source(SCHEMA), scope)
    assert scope["SCHEMA"].jsonValue() == struct_type_json(SCHEMA)

    full = {**WRITTEN, **{f"maybe_{name}": WRITTEN[name] for name in TYPES if name != "prices"}}
    empty = {**WRITTEN, **{f"maybe_{name}": None for name in TYPES if name != "prices"}}
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    rows = [
        ("all", 0, offset, at, b"k", bytearray(framed(7, SCHEMA, value))) for offset, value in enumerate([full, empty])
    ]
    ddl = delta_ddl(SCHEMA, "all").replace("CREATE TABLE `all`", f"CREATE TABLE delta.`{tmp_path / 'all'}`")
    assert "`day` DATE NOT NULL COMMENT 'A day.'" in ddl
    spark.sql(ddl)
    decoded = decode(spark.createDataFrame(rows, KAFKA), contract)
    columns = [field["name"] for field in SCHEMA["fields"]]
    values = decoded.orderBy("_offset").selectExpr(*(f"value.`{name}`" for name in columns))
    values.write.format("delta").mode("append").save(str(tmp_path / "all"))
    stored = spark.read.format("delta").load(str(tmp_path / "all"))
    assert nullable(stored.schema.jsonValue()) == nullable(struct_type_json(SCHEMA))
    found = [row.asDict(recursive=True) for row in stored.orderBy("maybe_state").collect()]
    instants = {name for name in columns if "instant" in name}
    for row, expected in zip(found, [{}, READ], strict=True):
        for name in columns:
            wanted = expected.get(name.removeprefix("maybe_")) if name.startswith("maybe_") else READ[name]
            value = row[name]
            if name in instants and value is not None:
                # Spark hands instants out as naive times of this machine's zone.
                value = value.astimezone(dt.UTC)
            assert (bytes(value) if isinstance(value, bytearray) else value) == wanted, name
