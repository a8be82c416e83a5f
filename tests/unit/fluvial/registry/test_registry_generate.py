"""What follows from a contract: classes, suites, statements and a page."""

import dataclasses
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fluvial.registry.contracts import Contract
from fluvial.registry.generate import (
    GenerateError,
    dataclasses_source,
    delta_ddl,
    dictionary_page,
    expectation_suite,
    struct_type_json,
    struct_type_source,
)

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "doc": "One order | of the shop's.",
    "fields": [
        {"name": "id", "type": "string", "doc": 'Its "name".', "fluvial.pattern": "[A-Z]{2}[0-9]+"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "None"]}, "default": "None"},
        {"name": "class", "type": ["null", "Kind"], "default": None},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "fluvial.min": 0,
            "fluvial.max": 1000,
        },
        {"name": "unit", "type": ["null", {"type": "string", "fluvial.values": ["kg", "lb"]}], "default": None},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int", "default": 1}]},
            },
            "default": [],
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "either", "type": ["int", "string"], "default": 3},
        {"name": "wide", "type": ["int", "null", "long"]},
    ],
}
SELF: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}


def test_dataclasses_are_made_and_take_values() -> None:
    module = ModuleType("made_of_order")
    sys.modules[module.__name__] = module
    try:
        exec(compile(dataclasses_source(SCHEMA), "order.py", "exec", dont_inherit=True), module.__dict__)
        order = module.Order(id="AB1", price=Decimal("1.50"), at=None, wide=2**40)
        assert (order.kind, order.class_, order.lines, order.either) == ("None", None, [], 3)
        assert order.kind is module.Kind.None_
        assert dataclasses.asdict(module.Line()) == {"n": 1}
        with pytest.raises(TypeError, match="missing 3 required keyword-only arguments: 'price', 'at', and 'wide'"):
            module.Order(id="AB1")
        with pytest.raises(dataclasses.FrozenInstanceError):
            order.id = "x"
        types = {each.name: each.type for each in dataclasses.fields(module.Order)}
        assert types == {
            "id": "str",
            "kind": "Kind",
            "class_": "Kind | None",
            "price": "Decimal",
            "unit": "str | None",
            "lines": "list[Line]",
            "at": "datetime",
            "either": "int | str",
            "wide": "int | None",
        }
        exec(compile(dataclasses_source(SELF), "self.py", "exec", dont_inherit=True), module.__dict__)
        assert module.R(r=module.R(r=None)).r == module.R(r=None)
    finally:
        del sys.modules[module.__name__]


def test_the_suite_holds_what_fields_declare() -> None:
    suite = expectation_suite(SCHEMA, "orders")
    told = [(each["type"], each["kwargs"]) for each in suite["expectations"]]
    required = ["id", "kind", "price", "lines", "at", "either"]
    assert told == [
        *(("expect_column_values_to_not_be_null", {"column": name}) for name in required),
        ("expect_column_values_to_be_in_set", {"column": "kind", "value_set": ["NEW", "None"]}),
        ("expect_column_values_to_be_in_set", {"column": "class", "value_set": ["NEW", "None"]}),
        ("expect_column_values_to_be_in_set", {"column": "unit", "value_set": ["kg", "lb"]}),
        ("expect_column_values_to_be_between", {"column": "price", "min_value": 0, "max_value": 1000}),
        ("expect_column_values_to_match_regex", {"column": "id", "regex": "^(?:[A-Z]{2}[0-9]+)$"}),
    ]


def test_great_expectations_reads_the_suite() -> None:
    from fluvial.quality.engine import _great_expectations

    gx = _great_expectations()
    suite = gx.ExpectationSuite(**expectation_suite(SCHEMA, "orders"))
    assert [type(each).__name__ for each in suite.expectations[-2:]] == [
        "ExpectColumnValuesToBeBetween",
        "ExpectColumnValuesToMatchRegex",
    ]


def test_columns() -> None:
    assert delta_ddl(SCHEMA, "sales.orders").splitlines() == [
        "CREATE TABLE `sales`.`orders` (",
        "  `id` STRING NOT NULL COMMENT 'Its \"name\".',",
        "  `kind` STRING NOT NULL,",
        "  `class` STRING,",
        "  `price` DECIMAL(9,2) NOT NULL,",
        "  `unit` STRING,",
        "  `lines` ARRAY<STRUCT<`n`: INT>> NOT NULL,",
        "  `at` TIMESTAMP NOT NULL,",
        "  `either` STRUCT<`member0`: INT, `member1`: STRING> NOT NULL,",
        "  `wide` BIGINT",
        ")",
        "USING DELTA",
        "COMMENT 'One order | of the shop\\'s.'",
    ]
    assert "StructField('price', DecimalType(9,2), False)," in struct_type_source(SCHEMA)
    with pytest.raises(GenerateError, match="the record R contains itself"):
        struct_type_json(SELF)
    for made in (struct_type_json, dataclasses_source):
        with pytest.raises(GenerateError, match="this schema is none"):
            made("string")


def test_the_dictionary() -> None:
    contract = Contract(
        producer="shop",
        contact="Shop <shop@example.org>",
        subject="orders-value",
        path=Path("orders.avsc"),
        schema=SCHEMA,
        text="",
        compatibility="FULL",
        topics=("orders",),
    )
    lines = dictionary_page([contract]).splitlines()
    assert lines[:5] == ["# Data dictionary", "", "## orders-value", "", "One order | of the shop's."]
    assert "written by shop (Shop <shop@example.org>). Compatibility: FULL." in lines[6]
    rows = [line for line in lines if line.startswith("| `")]
    assert '| `id` | string | no |  | Its "name". (pattern: `[A-Z]{2}[0-9]+`) |' in rows
    assert "| `price` | decimal(9, 2) | no |  | (min: `0`, max: `1000`) |" in rows
    assert "| `lines[].n` | int | no | `1` |  |" in rows
