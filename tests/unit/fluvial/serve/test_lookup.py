"""The row of a key as a statement, answered by Sail: each type of key finds its row, and text cannot end its string."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from keyed_history import KeyedHistory

import fluvial
from fluvial.database import Database
from fluvial.query.lookup import lookup

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["ada", "o'hara", 'a"b', "back\\slash", "' OR '1'='1", "", "zeile\n", "ß"]),
    "long": (pa.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "whole": (pa.int32(), [0, -(2**31), 2**31 - 1]),
    "day": (pa.date32(), [dt.date(1582, 10, 15), dt.date(2026, 3, 1)]),
    "flag": (pa.bool_(), [True, False]),
    "raw": (pa.binary(), [b"", b"\x00\xff", b"ada"]),
    "at": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 1, 6, 10, 59, 41, 7, dt.UTC), dt.datetime(1969, 1, 1, tzinfo=dt.UTC)],
    ),
    "spent": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("-12345678.90")]),
}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("warehouse")
    for name, (kind, values) in KEYS.items():
        table = KeyedHistory(folder / "state" / name, {"key": kind, "note": pa.string()}, ["key"])
        table.put([{"key": value, "note": repr(value)} for value in values])
    with fluvial.connect(folder) as db:
        yield db


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (_, values) in KEYS.items() for value in values])
def test_each_type_of_key_finds_its_row(db: Database, name: str, value: Any) -> None:
    view = db._warehouse().table(f"state.{name}").newest()
    statement = view.lookup(view.key.of_value(value), ["note"])
    answer = db.sql(statement)
    assert answer.rows() == [{"note": repr(value)}], statement
    assert answer.told.engine == "sail"


@pytest.mark.parametrize("name", KEYS)
def test_all_keys_of_a_type_find_their_rows_at_once_in_their_order(db: Database, name: str) -> None:
    values = KEYS[name][1]
    view = db._warehouse().table(f"state.{name}").newest()
    keys = [view.key.of_value(value) for value in (values[-1], *values)]
    answer = db.sql(view.lookup_all(keys, ["note"])).arrow()
    expected = [{"note": repr(value)} for value in (values[-1], *values)]
    assert view.in_order(keys, answer.to_batches(), ["note"]) == expected
    assert view.in_order(keys, answer.slice(0, 0).to_batches(), ["note"]) == [None] * len(keys)


def test_a_thousand_keys_of_two_columns_are_one_statement(tmp_path: Path) -> None:
    table = KeyedHistory(tmp_path / "marts" / "days", {"city": pa.string(), "n": pa.int64()}, ["city", "n"])
    table.put([{"city": "Bern", "n": number} for number in range(0, 3000, 3)])
    with fluvial.connect(tmp_path, keys={"marts.days": ["city", "n"]}) as db:
        view = db._warehouse().table("marts.days").newest()
        keys = [view.key.of_value(["Bern", number]) for number in range(1000)]
        found = view.in_order(keys, db.sql(view.lookup_all(keys)).arrow().to_batches())
        assert [row["n"] for row in found if row] == list(range(0, 1000, 3))
        assert found[1] is None
        assert db.sql(view.lookup_all([])).rows() == []


def test_columns_are_quoted() -> None:
    assert lookup("state.t", ["a`b"], [("k", "integer", 7)]) == "SELECT `a``b` FROM `state`.`t` WHERE `k` = 7"


def test_a_small_decimal_has_no_exponent() -> None:
    statement = lookup("state.t", ["a"], [("k", "decimal(20,10)", Decimal("0.0000001000"))])
    assert statement.endswith("WHERE `k` = cast('0.0000001000' as DECIMAL(20,10))")
