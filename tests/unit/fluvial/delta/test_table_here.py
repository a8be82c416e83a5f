"""Which tables' files are written without Spark."""

import json
from typing import Any

import pyarrow as pa
import pytest

from fluvial.delta.table_here import columns_to_write

PLACE = {"type": "struct", "fields": [{"name": "offset", "type": "long", "nullable": True, "metadata": {}}]}
IN_ARROW = pa.struct({"offset": pa.int64()})


def table(kind: Any, *, nullable: bool = True, metadata: dict[str, Any] | None = None) -> str:
    column = {"name": "value", "type": kind, "nullable": nullable, "metadata": metadata or {}}
    return json.dumps({"type": "struct", "fields": [column]})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("decimal(10,2)", pa.decimal128(10, 2)),
        (PLACE, IN_ARROW),
        ({"type": "array", "elementType": PLACE, "containsNull": True}, pa.list_(IN_ARROW)),
        (
            {"type": "map", "keyType": "string", "valueType": PLACE, "valueContainsNull": True},
            pa.map_(pa.string(), IN_ARROW),
        ),
    ],
)
def test_nested_values_are_written_with_all_that_they_consist_of(kind: Any, expected: pa.DataType) -> None:
    schema = columns_to_write(
        table(kind, metadata={"comment": "of the event"}), {"delta.enableDeletionVectors": "true"}
    )
    assert schema is not None
    assert schema.field("value").type == expected


@pytest.mark.parametrize(
    ("schema", "properties"),
    [
        (table("long", nullable=False), {}),
        (table("long", metadata={"delta.generationExpression": "1 + 1"}), {}),
        (table("variant"), {}),
        (table({"type": "array", "elementType": "void", "containsNull": True}), {}),
        (table("long"), {"delta.columnMapping.mode": "name"}),
        (table("long"), {"delta.constraints.positive": "value > 0"}),
    ],
)
def test_what_only_deltas_writer_sees_to_is_for_spark(schema: str, properties: dict[str, str]) -> None:
    assert columns_to_write(schema, properties) is None
