"""`fluvial.connect()`: queries by Sail, rows by key and changes in a program; no Spark runs."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from keyed_history import KeyedHistory, Row, customers

import fluvial
from fluvial.database import Change, Database
from fluvial.errors import FluvialError
from fluvial.query.rows import type_name
from fluvial.serve.errors import BadKeyError, NoTableError

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")


def row(customer: str, number: int) -> Row:
    return {"customer": customer, "orders": number, "spent": Decimal(number) / 4, "_fold": "{}"}


def shown(customer: str, number: int) -> Row:
    return {name: value for name, value in row(customer, number).items() if name != "_fold"}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> KeyedHistory:
    history = customers(tmp_path_factory.mktemp("warehouse"))
    history.put([row("ada", 1), row("bob", 2), row("cyd", 3)])
    history.put([row("ada", 4), row("dot", 5)], gone=["cyd"])
    return history


@pytest.fixture(scope="module")
def db(history: KeyedHistory) -> Iterator[Database]:
    with fluvial.connect(history.folder.parents[1]) as db:
        yield db


def test_rows_by_key_are_python_values(db: Database, history: KeyedHistory) -> None:
    table = db.table("state.customers")
    assert table.get("ada") == shown("ada", 4)
    assert table.get("cyd") is None
    assert table.get("cyd", version=0) == shown("cyd", 3)
    assert table.get_all(["bob", ("ada",), "no"], columns=["orders"]) == [{"orders": 2}, {"orders": 4}, None]
    assert table.version == history.newest
    with pytest.raises(BadKeyError, match="give 1 values, not 2"):
        table.get("ada", 1)
    with pytest.raises(NoTableError, match=r"there are state\.customers"):
        db.table("state.orders")
    assert db.tables() == ["state.customers"]


def test_a_commit_is_seen_by_the_next_look_up(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row("ada", 1)])
    with fluvial.connect(tmp_path) as db:
        table = db.table("state.customers")
        assert table.get("ada") == shown("ada", 1)
        history.put([row("ada", 2)])
        assert table.get("ada") == shown("ada", 2)


def test_statements_are_answered_in_the_forms_of_libraries(db: Database) -> None:
    found = db.sql("select * from state.customers order by customer")
    assert found.rows() == [shown("ada", 4), shown("bob", 2), shown("dot", 5)]
    assert found.arrow().column_names == ["customer", "orders", "spent"]
    assert list(found.df()["customer"]) == ["ada", "bob", "dot"]
    assert str(found.told).startswith("sail, ")
    assert db.sql("select customer from state.customers where customer = 'cyd'", at="orders:0=9").rows() == [
        {"customer": "cyd"}
    ]
    assert db.sql("select count(*) n from state.customers").rows() == [{"n": 3}], "an offset is of one statement"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("it's \\ \n ẞ", "string"),
        (True, "boolean"),
        (-5, "int"),
        (2**40, "bigint"),
        (1.5, "double"),
        (Decimal("-12.340"), "decimal(5,3)"),
        (Decimal("1E+3"), "decimal(4,0)"),
        (dt.date(2026, 3, 1), "date"),
        (dt.datetime(2026, 3, 1, 12, 0, 0, 5), "timestamp"),
    ],
)
def test_parameters_keep_value_and_type(db: Database, value: Any, kind: str) -> None:
    found = db.sql("select :v as v", {"v": value})
    assert found.told.engine == "sail"
    assert found.rows() == [{"v": value}]
    assert type_name(found.table.schema.field("v").type) == kind


def test_parameters_that_are_wrong_are_refused(db: Database) -> None:
    with pytest.raises(FluvialError, match="no parameter :n"):
        db.sql("select 1", {"n": 1})
    with pytest.raises(FluvialError, match="parameter n is list"):
        db.sql("select :n", {"n": [1]})


def test_changes_are_what_became_of_each_key(db: Database) -> None:
    found = sorted(db.changes("state.customers", since=0), key=lambda change: change.key)
    assert found == [
        Change(kind="changed", key=("ada",), before=shown("ada", 1), after=shown("ada", 4)),
        Change(kind="removed", key=("cyd",), before=shown("cyd", 3), after=None),
        Change(kind="added", key=("dot",), before=None, after=shown("dot", 5)),
    ]
    assert [*db.changes("state.customers", since=1)] == []
    with pytest.raises(FluvialError, match="no version 9"):
        next(db.changes("state.customers", since=9))
