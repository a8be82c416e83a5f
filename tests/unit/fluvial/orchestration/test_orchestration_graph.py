"""Names and sources of the asset graph."""

from typing import Any

import dagster as dg
import pytest

from fluvial.orchestration.assets.graph import asset_key, avro_type_name, contract_columns, table_of
from fluvial.orchestration.checks.lag import lag_of


def test_a_table_and_its_key_name_each_other() -> None:
    assert asset_key("history.orders") == dg.AssetKey(["history", "orders"])
    assert table_of(asset_key("history.orders")) == "history.orders"


@pytest.mark.parametrize(
    ("avro_type", "name"),
    [
        ("string", "string"),
        (["null", "string"], "string"),
        (["null", "int", "string"], "int | string"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp-millis"),
        ({"type": "enum", "name": "Kind", "symbols": ["A"]}, "enum Kind"),
        ({"type": "array", "items": ["null", "double"]}, "array<double>"),
        ({"type": "map", "values": {"type": "record", "name": "Leg", "fields": []}}, "map<record Leg>"),
        ({"type": "string"}, "string"),
        ("null", "null"),
    ],
)
def test_an_avro_type_has_a_short_name(avro_type: Any, name: str) -> None:
    assert avro_type_name(avro_type) == name


def test_the_columns_of_a_contract_say_what_may_be_missing() -> None:
    schema = {"fields": [{"name": "gate", "type": ["null", "string"], "doc": "Where."}, {"name": "at", "type": "long"}]}
    gate, at = contract_columns(schema).columns
    assert (gate.name, gate.type, gate.description, gate.constraints.nullable) == ("gate", "string", "Where.", True)
    assert (at.constraints.nullable, at.description) == (False, None)


def test_lag_counts_what_the_table_has_not_read() -> None:
    assert lag_of({0: 10, 1: 5}, {0: 7, 1: 5}) == 3


def test_a_partition_that_was_never_read_lags_by_all_it_holds() -> None:
    assert lag_of({0: 10, 1: 5}, {0: 10}) == 5
