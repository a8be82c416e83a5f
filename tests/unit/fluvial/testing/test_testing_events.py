"""Events made from a contract: of every Avro type, the same each time, overridden by name."""

import io
import itertools
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from avro_everything import EVERYTHING

from fluvial.registry.contracts import load_contracts
from fluvial.testing import BuildError, events

ROOT = Path(__file__).parents[4]
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["PLACED", "PAID"]}},
    ],
}


def test_each_field_follows_its_type_and_the_number() -> None:
    assert events(ORDER, 3) == [
        {"order_id": "order_id-0", "amount": 0.0, "status": "PLACED"},
        {"order_id": "order_id-1", "amount": 1.0, "status": "PAID"},
        {"order_id": "order_id-2", "amount": 2.0, "status": "PLACED"},
    ]


def test_an_override_is_a_value_a_function_or_an_iterator() -> None:
    made = events(ORDER, 3, order_id=itertools.cycle(["a", "b"]), amount=lambda number: 10.0 * number, status="PAID")
    assert [event["order_id"] for event in made] == ["a", "b", "a"]
    assert [event["amount"] for event in made] == [0.0, 10.0, 20.0]
    assert {event["status"] for event in made} == {"PAID"}


def test_null_is_a_value_to_override_with() -> None:
    assert events(ORDER, 1, amount=None)[0]["amount"] is None


def test_events_of_every_type_can_be_written_and_read_again() -> None:
    schema = fastavro.parse_schema(EVERYTHING)
    for event in events(EVERYTHING, 40):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, event, strict=True)
        body.seek(0)
        assert fastavro.schemaless_reader(body, schema, None) == read_back(event)


def read_back(event: dict[str, Any]) -> dict[str, Any]:
    """The event as fastavro gives it: a UUID is an object of its own there."""
    from uuid import UUID

    return {**event, "uuid": UUID(event["uuid"])}


def test_logical_types_are_python_values() -> None:
    event = events(EVERYTHING, 3)[2]
    assert event["at"] == datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    assert event["day"] == date(2026, 1, 3)
    assert event["price"] == Decimal(2)


def test_a_record_that_holds_itself_ends() -> None:
    assert events(EVERYTHING, 1)[0]["tree"] == {"name": "name-0", "left": None}


def test_contracts_paths_and_texts_are_schemas_too(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    assert events(path, 2) == events(str(path), 2) == events(json.dumps(ORDER), 2) == events(ORDER, 2)


def test_every_contract_of_this_repository_can_be_built() -> None:
    for contract in load_contracts(ROOT / "schemas"):
        schema = fastavro.parse_schema(json.loads(contract.text))
        for event in events(contract, 4):
            fastavro.schemaless_writer(io.BytesIO(), schema, event, strict=True)


@pytest.mark.parametrize(
    ("schema", "overrides", "says"),
    [
        (ORDER, {"amout": 1.0}, "Order has no field amout; did you mean amount"),
        (ORDER, {"zzz": 1.0}, "Order has no field zzz; it has order_id, amount, status"),
        (ORDER, {"status": iter(["PAID"])}, "the iterator for status ended before event 1"),
        ("no/such.avsc", {}, "no/such.avsc: No such file"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, {}, "this schema is enum"),
        ('{"type": ', {}, "not an Avro schema"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "B"}]}, {}, "field a is of the type B"),
    ],
)
def test_what_cannot_be_built_is_told(schema: Any, overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(BuildError, match=says):
        events(schema, 2, **overrides)
