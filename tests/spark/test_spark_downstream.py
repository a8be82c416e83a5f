"""
What a change of a contract breaks downstream, told before it is registered.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_project.defs import SUITES
from fluvial.registry.contracts import load_contracts
from fluvial.spark.avro import Contract, ContractError
from fluvial.tables import compacted, history, latest, max_, pipeline, state
from fluvial.tables.declare.declarations import Declaration
from fluvial.tables.declare.project import load_project
from fluvial.tables.drive.downstream import Impact, impacts

pytestmark = pytest.mark.spark

CONTRACTS = {each.topic: each for each in load_contracts(Path(__file__).parents[2] / "schemas")}


def proposed(topic: str, change: Callable[[dict[str, Any]], None] = lambda fields: None) -> Contract:
    """The contract of a topic of the flights, after `change` of its fields by name."""
    schema = copy.deepcopy(dict(CONTRACTS[topic].schema))
    fields = {each["name"]: each for each in schema["fields"]}
    change(fields)
    return Contract.proposed(f"{topic}-value", json.dumps({**schema, "fields": list(fields.values())}))


def of_flights(spark: Any, topic: str, change: Callable[[dict[str, Any]], None]) -> list[Impact]:
    return impacts(
        load_project("pipelines"),
        spark,
        topic=topic,
        before=proposed(topic),
        after=proposed(topic, change),
        other=proposed,
        suites=SUITES,
    )


def places(found: list[Impact]) -> dict[str, bool]:
    return {each.table if each.column is None else f"{each.table}.{each.column}": each.breaks for each in found}


def test_a_field_more_breaks_nothing(spark: Any) -> None:
    field = {"name": "gate", "type": ["null", "string"], "default": None}
    assert of_flights(spark, "flight_events", lambda fields: fields.update(gate=field)) == []


def test_a_field_that_is_taken_away_is_missed_by_those_who_read_it(spark: Any) -> None:
    found = of_flights(spark, "flight_events", lambda fields: fields.pop("distance"))
    assert places(found)["state.aircraft.miles"]
    [miles] = [each for each in found if each.column == "miles"]
    assert "field miles = sum(distance, where event_type = 'ARRIVED') does not fit flight_events-value" in miles.reason
    assert "`distance` cannot be resolved" in miles.reason
    # The pipeline reads dep_delay and not distance.
    assert "marts.delay_by_hour_and_visibility" not in places(found)
    found = of_flights(spark, "flight_events", lambda fields: fields.pop("dep_delay"))
    [delays] = [each for each in found if each.table == "marts.delay_by_hour_and_visibility"]
    assert delays.breaks
    assert "`dep_delay` cannot be resolved" in delays.reason
    assert not places(found)["history.flight_events.dep_delay"]


def test_a_pipeline_is_missed_by_who_reads_its_other_topic(spark: Any) -> None:
    found = of_flights(spark, "weather", lambda fields: fields.pop("visib"))
    assert places(found)["marts.delay_by_hour_and_visibility"]


SMALL = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "amount", "type": "int"},
        {"name": "unit", "type": {"type": "enum", "name": "Unit", "symbols": ["KG", "LB"]}},
        {"name": "version", "type": "int", "default": 0},
    ],
}


def of_small(spark: Any, *declared: Declaration, **changed: Any) -> dict[str, bool]:
    after = {**SMALL, "fields": [{**each, **changed.get(each["name"], {})} for each in SMALL["fields"]]}
    found = impacts(
        {each.table: each for each in declared},
        spark,
        topic="readings",
        before=Contract.proposed("readings-value", json.dumps(SMALL)),
        after=Contract.proposed("readings-value", json.dumps(after)),
        other=lambda topic: None,
    )
    return places(found)


def test_what_a_column_of_delta_cannot_take(spark: Any) -> None:
    readings = history("readings")
    largest = state("largest", topic="readings", key="id", fields={"most": max_("amount"), "unit": latest("unit")})
    assert of_small(spark, readings, largest, amount={"type": "long"}) == {
        "history.readings.amount": True,
        "state.largest.most": True,
    }
    nullable = {"type": ["null", "int"], "default": None}
    assert of_small(spark, readings, largest, amount=nullable) == {}


def test_order_keys_and_what_reads_a_broken_table(spark: Any) -> None:
    guarded = state("newest", topic="readings", key="id", fields={"a": latest("amount")}, order="version")
    assert of_small(spark, guarded, version={"name": "revision"}) == {"state.newest": True}
    keyed = compacted("readings", key="unit")
    assert of_small(spark, keyed, unit={"type": "int"}) == {"compacted.readings": True}
    after = pipeline(name="top", inputs=["state.newest"])(lambda newest: newest.select("a"))
    further = pipeline(name="further", inputs=["marts.top"])(lambda top: top.select("a"))
    assert of_small(spark, guarded, after, further, version={"name": "revision"}) == {
        "state.newest": True,
        "marts.top": True,
        "marts.further": True,
    }
    one = state("newest", topic="readings", key="id", fields={"a": latest("amount"), "u": latest("unit")})
    assert of_small(spark, one, after, amount={"name": "quantity"}) == {"state.newest.a": True, "marts.top": True}


def test_a_suite_that_does_not_know_a_new_symbol(spark: Any) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["event_type"]["type"]["symbols"].append("DIVERTED")
        fields["event_type"]["type"]["default"] = "CANCELLED"

    found = of_flights(spark, "flight_events", change)
    wrong = [each for each in found if each.breaks]
    assert [(each.table, each.column) for each in wrong] == [("history.flight_events", "event_type")]
    assert wrong[0].reason == "suite known_events does not know DIVERTED"


def test_what_cannot_be_rows_is_no_contract_of_a_table() -> None:
    with pytest.raises(ContractError, match="is not a record"):
        Contract.proposed("x-value", '"string"')
