"""Expectations read from a contract."""

from types import SimpleNamespace
from typing import Any

from fluvial.quality import contract_expectations
from fluvial.quality.contract import ContractField, contract_fields

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Move",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["IN", "OUT"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "gate", "type": ["null", "string"], "default": None},
        {"name": "previous_kind", "type": ["null", "Kind"], "default": None},
    ],
}


def test_required_fields_and_enums_are_read_with_names_resolved() -> None:
    assert list(contract_fields(SCHEMA)) == [
        ContractField(name="kind", required=True, symbols=("IN", "OUT")),
        ContractField(name="at", required=True, symbols=()),
        ContractField(name="gate", required=False, symbols=()),
        ContractField(name="previous_kind", required=False, symbols=("IN", "OUT")),
    ]


def test_each_required_field_and_each_enum_gives_one_expectation() -> None:
    gxe = SimpleNamespace(
        ExpectColumnValuesToNotBeNull=lambda column: ("not null", column),
        ExpectColumnValuesToBeInSet=lambda column, value_set: ("in", column, value_set),
    )
    assert contract_expectations(SCHEMA)(gxe) == [
        ("not null", "kind"),
        ("not null", "at"),
        ("in", "kind", ["IN", "OUT"]),
        ("in", "previous_kind", ["IN", "OUT"]),
    ]
