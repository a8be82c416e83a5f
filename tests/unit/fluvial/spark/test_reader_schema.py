"""The schema that a table is read as: its contract's newest version, laid over the ones before it."""

import json
from typing import Any

from fluvial.spark.reader_schema import reader_schema


def record(*fields: dict[str, Any], name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def merged(*versions: str) -> list[dict[str, Any]]:
    return list(json.loads(reader_schema(versions))["fields"])


def test_one_version_is_taken_as_it_is() -> None:
    text = record(field("a", doc="d"))
    assert reader_schema([text]) == text


def test_a_removed_field_stays_and_may_be_null() -> None:
    assert merged(record(field("a"), field("b")), record(field("b"))) == [
        field("b"),
        field("a", ["null", "int"], default=None),
    ]


def test_a_removed_field_keeps_its_default() -> None:
    first = record(field("a"), field("unit", "string", default="kg"))
    assert merged(first, record(field("a")))[1] == field("unit", "string", default="kg")


def test_a_removed_union_gets_null_as_its_first_branch() -> None:
    first = record(field("a"), field("b", ["string", "null"]))
    assert merged(first, record(field("a")))[1] == field("b", ["null", "string"], default=None)


def test_a_renamed_field_is_one_field_also_when_its_alias_is_left_out_later() -> None:
    versions = [record(field("a")), record(field("b", aliases=["a"])), record(field("b"), field("c", default=0))]
    assert merged(*versions) == [field("b", aliases=["a"]), field("c", default=0)]


def test_an_old_name_that_is_used_again_is_a_field_of_its_own() -> None:
    versions = [record(field("a")), record(field("b", aliases=["a"])), record(field("b"), field("a", "string"))]
    assert merged(*versions) == [field("b"), field("a", "string")]


def test_a_field_that_comes_back_is_what_the_newest_version_says() -> None:
    versions = [record(field("a"), field("b")), record(field("a")), record(field("a"), field("b", "long", default=7))]
    assert merged(*versions) == [field("a"), field("b", "long", default=7)]


def test_records_within_are_laid_over_each_other_as_well() -> None:
    def place(*fields: dict[str, Any]) -> dict[str, Any]:
        return {"type": "record", "name": "Place", "fields": list(fields)}

    versions = [record(field("at", place(field("x"), field("y")))), record(field("at", place(field("x"))))]
    (at,) = merged(*versions)
    assert at["type"]["fields"] == [field("x"), field("y", ["null", "int"], default=None)]


def test_a_type_is_spelled_out_where_it_first_occurs() -> None:
    unit = {"type": "enum", "name": "Unit", "symbols": ["KG", "G"]}
    first = record(field("a", unit), field("b", "Unit"))
    a, b = merged(first, record(field("b", {**unit, "symbols": ["KG", "G", "T"]})))
    assert (a["name"], a["type"]["symbols"]) == ("b", ["KG", "G", "T"])
    assert b == field("a", ["null", "Unit"], default=None)


def test_a_record_of_another_name_has_the_old_one_as_an_alias() -> None:
    found = json.loads(reader_schema([record(field("a"), name="Old"), record(field("b", aliases=["a"]), name="New")]))
    assert (found["name"], found["aliases"]) == ("New", ["Old"])
