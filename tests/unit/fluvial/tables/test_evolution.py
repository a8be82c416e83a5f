"""What a newer contract makes of rows that are there."""

import json
from typing import Any

import pytest

from fluvial.tables.plan.evolution import (
    Column,
    Default,
    Evolution,
    Items,
    Keep,
    NotInTableError,
    Source,
    Struct,
    Symbols,
    evolution,
)


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def evolved(old: dict[str, Any], new: dict[str, Any], *writers: dict[str, Any]) -> Evolution:
    texts = {identity: json.dumps(writer) for identity, writer in enumerate(writers or (old,), 1)}
    return evolution(json.dumps(old), json.dumps(new), texts)


def column(plan: Evolution, name: str) -> Column:
    return next(each for each in plan.columns if each.name == name)


def test_nothing_changes_where_only_words_did() -> None:
    plan = evolved(record(field("a")), record(field("a", doc="what it is")))
    assert plan.is_nothing
    assert plan.only_adds_nulls


def test_a_new_field_is_its_default_in_records_that_lack_it() -> None:
    plan = evolved(record(field("a")), record(field("a"), field("b", "string", default="x")))
    assert plan.changed == ("b",)
    (source,) = column(plan, "b").sources.values()
    assert source.stored is None
    assert isinstance(source.value, Default)
    assert not plan.only_adds_nulls


def test_a_new_field_whose_default_is_null_is_only_added() -> None:
    plan = evolved(record(field("a")), record(field("a"), field("b", ["null", "string"], default=None)))
    assert not plan.is_nothing
    assert plan.only_adds_nulls


def test_a_changed_default_is_of_the_writers_that_lack_the_field() -> None:
    without, having = record(field("a")), record(field("a"), field("b", default=1))
    plan = evolved(having, record(field("a"), field("b", default=2)), without, having)
    sources = column(plan, "b").sources
    assert isinstance(sources[1].value, Default)
    assert sources[2] == Source("b", Keep())


def test_a_renamed_field_is_stored_under_its_old_name() -> None:
    plan = evolved(record(field("a")), record(field("b", aliases=["a"])))
    assert plan.renamed == ("a",)
    assert column(plan, "b").sources == {1: Source("a", Keep())}


@pytest.mark.parametrize(
    ("before", "after"),
    [("int", "long"), ("int", "double"), ("long", "float"), ("float", "double"), ("string", "bytes")],
)
def test_a_promoted_field_is_cast(before: str, after: str) -> None:
    plan = evolved(record(field("a", before)), record(field("a", after)))
    assert column(plan, "a").sources == {1: Source("a", Keep(cast=True))}


def test_decimals_may_get_more_digits_before_the_point_only() -> None:
    def decimal(precision: int, scale: int) -> dict[str, Any]:
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    old = record(field("a", decimal(6, 2)))
    assert column(evolved(old, record(field("a", decimal(8, 2)))), "a").sources == {1: Source("a", Keep(cast=True))}
    with pytest.raises(NotInTableError, match="a was"):
        evolved(old, record(field("a", decimal(8, 3))))


def test_an_integer_that_was_stored_as_a_float_cannot_be_more_exact_later() -> None:
    sent = record(field("a", "int"))
    with pytest.raises(NotInTableError, match="precision of a float"):
        evolved(record(field("a", "float")), record(field("a", "double")), sent)


def test_what_is_within_records_arrays_and_maps_is_changed_there() -> None:
    def nested(*fields: dict[str, Any]) -> dict[str, Any]:
        inner = record(*fields, name="Inner")
        return record(
            field("one", inner),
            field("many", {"type": "array", "items": "Inner"}),
            field("named", {"type": "map", "values": ["null", "Inner"]}),
        )

    plan = evolved(nested(field("x")), nested(field("y", "long", aliases=["x"])))
    inner = Struct((("y", Source("x", Keep(cast=True))),))
    assert column(plan, "one").sources == {1: Source("one", inner)}
    assert column(plan, "many").sources == {1: Source("many", Items(inner, is_map=False))}
    assert column(plan, "named").sources == {1: Source("named", Items(inner, is_map=True))}


def test_a_symbol_that_is_gone_becomes_the_enums_default() -> None:
    def unit(*symbols: str, **more: Any) -> dict[str, Any]:
        return record(field("a", {"type": "enum", "name": "Unit", "symbols": list(symbols), **more}))

    plan = evolved(unit("KG", "LB"), unit("KG", "OTHER", default="OTHER"))
    assert column(plan, "a").sources == {1: Source("a", Symbols(("KG", "OTHER"), "OTHER"))}
    assert evolved(unit("KG"), unit("KG", "LB")).is_nothing
    with pytest.raises(NotInTableError, match="no longer has symbols"):
        evolved(unit("KG", "LB"), unit("KG"))
    with pytest.raises(NotInTableError, match="stored as another"):
        evolved(unit("KG", default="KG"), unit("KG", "LB"), unit("KG", "LB"))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (field("a", "string"), 'a was "int" and is "string"'),
        (field("b", "int"), "b is not in older records and has no default"),
        (field("a", {"type": "int", "logicalType": "date"}), "a was"),
        (field("a", ["int", "string"]), "a is a union whose branches changed"),
    ],
)
def test_what_the_rows_do_not_tell_is_named(new: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotInTableError, match=reason):
        evolved(record(field("a")), record(new))


def test_what_may_be_null_cannot_become_required() -> None:
    with pytest.raises(NotInTableError, match="may be null in older records"):
        evolved(record(field("a", ["null", "int"])), record(field("a")))


def test_a_field_that_the_table_left_out_is_only_in_the_log() -> None:
    with pytest.raises(NotInTableError, match="b is in older records and was left out of the table"):
        evolved(record(field("a")), record(field("a"), field("b")), record(field("a"), field("b")))
