"""A state by a reducer, and one with versions, as Dagster's assets: what is shown of them without a run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from fluvial.orchestration.assets.assets import code_version, declaration_of, table_asset
from fluvial.orchestration.assets.policies import Policy
from fluvial.registry.contracts import Contract
from fluvial.tables import count, state

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": name, "type": "int"} for name in ("amount", "city")]}
RETURNS = "total BIGINT, seen TIMESTAMP"


def spend(state: Any, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    total = sum(event["amount"] for event in events)
    return {"total": total + (state["total"] if state else 0), "seen": None}


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    return Contract(
        producer="shop",
        contact="shop@example.org",
        subject="orders-value",
        path=tmp_path / "orders-value.avsc",
        schema=SCHEMA,
        text=json.dumps(SCHEMA),
        compatibility="BACKWARD",
        topics=("orders",),
    )


def test_each_column_of_a_reducer_comes_from_every_field(contract: Contract) -> None:
    declared = state("budgets", topic="orders", key="customer", reduce=spend, returns=RETURNS)
    asset = table_asset(declared, contract=contract, policy=Policy())
    (spec,) = asset.specs
    lineage = spec.metadata["dagster/column_lineage"]
    assert isinstance(lineage, dg.TableColumnLineage)
    assert {column: [each.column_name for each in deps] for column, deps in lineage.deps_by_column.items()} == {
        "total": ["amount", "city"],
        "seen": ["amount", "city"],
    }
    assert spec.description is not None
    assert "folded from the topic orders by `spend`" in spec.description
    assert "- `total`: BIGINT" in spec.description


def test_an_asset_keeps_its_declaration_and_tells_of_versions() -> None:
    past = state("past", topic="orders", key="customer", reduce=spend, returns=RETURNS, scd2=True)
    asset = table_asset(past, contract=None, policy=Policy())
    assert declaration_of(asset) == past
    (spec,) = asset.specs
    assert spec.description is not None
    assert spec.description.startswith("A row for each version of each customer")


def test_the_code_version_tells_of_the_reducer_and_of_no_address() -> None:
    declared = state("budgets", topic="orders", key="customer", reduce=spend, returns=RETURNS)
    assert declared.reducer is not None
    other = replace(declared, reducer=replace(declared.reducer, function=lambda state, events: None))
    assert code_version(declared) == code_version(other), "the digest of the text is the code, not the object"
    versions = [replace(declared, reducer=replace(declared.reducer, code=code)) for code in ("1", "2")]
    folded = state("budgets", topic="orders", key="customer", fields={"n": count()})
    past = replace(declared, scd2="_timestamp")
    assert len({code_version(each) for each in (declared, *versions, folded, past)}) == 5
