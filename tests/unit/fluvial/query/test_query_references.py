"""The tables that a query names, and the query with each in another place."""

import pytest

from fluvial.query.references import UnclearError, read_query
from fluvial.query.routing import (
    changes_session,
    is_query,
    why_spark,
    why_spark_answer,
    why_spark_settings,
    why_spark_types,
)
from fluvial.spark.warehouse import DATABASES

KNOWN = ("history.orders", "state.customers")


def rewritten(text: str) -> str:
    query = read_query(text, DATABASES, KNOWN)
    return query.rewritten(lambda each: f"{each.table}@{each.version}{each.timestamp or ''}")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("select * from state.customers", "select * from (state.customers@None) AS `customers`"),
        ("select * from State.`Customers` c where 1", "select * from (state.customers@None) c where 1"),
        (
            "select state.customers.a from state.customers as c, history.orders",
            "select customers.a from (state.customers@None) as c, (history.orders@None) AS `orders`",
        ),
        (
            "select * from history.orders version as of 3 o left join state.customers on true",
            "select * from (history.orders@3) o left join (state.customers@None) AS `customers` on true",
        ),
        (
            "select * from history.orders for timestamp as of timestamp '2026-01-01'",
            "select * from (history.orders@None2026-01-01) AS `orders`",
        ),
        (
            "with a as (select * from state.customers) select (select max(x) from history.orders) from a",
            "with a as (select * from (state.customers@None) AS `customers`) "
            "select (select max(x) from (history.orders@None) AS `orders`) from a",
        ),
        (
            "select 'from state.customers' -- from state.customers",
            "select 'from state.customers' -- from state.customers",
        ),
        ("select state from t", "select state from t"),
        ("select * from state.gone", "select * from (state.gone@None) AS `gone`"),
    ],
)
def test_tables_are_found_where_they_stand(text: str, wanted: str) -> None:
    assert rewritten(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "select state.customers from t state",
        "select * from spark_catalog.state.customers",
        "select * from state.customers tablesample (5 rows)",
        "select * from state.customers version as of x",
        "select * from state.customers timestamp as of current_timestamp() - interval 1 day",
        "select * from state.customers timestamp as of '2026-01-01' || ''",
        "select * from state.customers@v3",
        "select state.f(1)",
    ],
)
def test_what_cannot_be_told_is_unclear(text: str) -> None:
    with pytest.raises(UnclearError):
        read_query(text, DATABASES, KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        "with a as (select 1) select * from a",
        "(select 1) union all (select 2)",
        "values (1)",
        "select `update` from state.customers",
        "select u.name, delta.x from t as u, v as delta",
    ],
)
def test_queries_may_go_to_sail(text: str) -> None:
    assert why_spark(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "describe history state.customers",
        "show tables",
        "explain select 1",
        "insert into state.customers values (1)",
        "with a as (select 1) insert into state.customers select * from a",
        "from state.customers insert into x select *",
        "select * from parquet.`x`",
        "select * from delta.`/somewhere`",
        "select * from  text . `/etc/passwd`",
        "select * from state.`/etc/passwd`",
        "select Rand()",
        "select current_user",
        "create table x (a int)",
        "set spark.sql.ansi.enabled=false",
        "copy into x from 'y'",
        "",
    ],
)
def test_what_is_sparks_goes_there(text: str) -> None:
    assert why_spark(text) is not None


def test_what_changes_the_session_is_told_from_queries() -> None:
    assert changes_session("use state")
    assert changes_session(" -- x\n set a=b")
    assert not changes_session("insert into a values (1)")
    assert is_query("select 1")
    assert not is_query("delete from a")


def test_settings_that_change_answers_are_sparks() -> None:
    assert why_spark_settings({"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}) is None
    assert why_spark_settings({"spark.sql.ansi.enabled": "false"}) is not None
    assert why_spark_settings({"spark.sql.session.timeZone": "Europe/Bern"}) is not None


COLUMNS = [("n", "int"), ("big", "bigint"), ("amount", "decimal(12,2)"), ("weight", "double"), ("name", "string")]


@pytest.mark.parametrize(
    "text",
    [
        "select n + 1 from t",
        "select sum(n * 2) from t",
        "select cast(name as int) - 1 from t",
        "select big * 3 from t",
        "select amount / 3 from t",
        "select 7 / 2.0",
        "select avg(amount) from t",
        "select cast(weight as string) from t",
        "select name || weight from t",
        "select concat(name, weight) from t",
        "select if(n = 1, 1e1, amount) from t",
        "select max(greatest(2.50, 1e1))",
        "select case when n > 1 then weight else 2.5 end from t",
        "select coalesce(amount, cast(name as double)) from t",
    ],
)
def test_values_that_sail_makes_otherwise_are_sparks(text: str) -> None:
    assert why_spark_types(text, COLUMNS) is not None


@pytest.mark.parametrize(
    "text",
    [
        "select * from t where n > 3",
        "select count(*), sum(n), sum(big), sum(amount) from t where weight > 3",
        "select big + 1, amount - 2 from t",
        "select big / n, weight / 3, avg(weight) from t",
        "select amount * 2.5 from t",
        "select name || '-' || name, concat(name, big) from t where weight1 > 3",
        "select distinct * from t",
        "select coalesce(weight, 1e1), if(n = 1, weight, 0) from t",
        "select case when n > 1 then amount else 2.5 end from t",
    ],
)
def test_values_that_sail_makes_as_spark_does_are_its_own(text: str) -> None:
    assert why_spark_types(text, COLUMNS) is None


def test_decimals_that_arithmetic_has_filled_are_sparks() -> None:
    assert why_spark_answer("select a * b from t", ["decimal(38,6)"]) is not None
    assert why_spark_answer("select round(a, 2) from t", ["decimal(38,2)"]) is not None
    assert why_spark_answer("select *, count(*) from t", ["decimal(38,18)"]) is None
    assert why_spark_answer("select a * b from t", ["decimal(28,6)"]) is None
