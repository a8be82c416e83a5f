"""
Suites beside a run that goes on: on the rows that came, and with what each is declared to do with rows that fail.
"""

from collections.abc import Callable
from typing import Any

import pytest
from following import Follower
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.quality import RunningChecks, Suite, expectations
from fluvial.quality.running import Checked
from fluvial.quality.suite import SuiteError
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import history, latest, pipeline, state
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}


def orders(*amounts: int, key: str = "a") -> list[Sent]:
    return [Sent(key=f"{key}{number}", value={"amount": amount}) for number, amount in enumerate(amounts)]


def positive(table: str, **how: Any) -> Suite:
    @expectations(table, name="positive", **how)
    def suite(gxe: Any) -> Any:
        """No amount is negative."""
        return [
            gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0),
            gxe.ExpectTableRowCountToBeBetween(max_value=1_000),
        ]

    return suite


class Checking:
    """Checks of a run, and what they found."""

    def __init__(self, suites: list[Suite], settings: Settings, spark: Any) -> None:
        self.found: list[Checked] = []
        self.said: list[str] = []
        self.checks = RunningChecks(
            suites,
            Warehouse.at(settings.warehouse),
            spark,
            on_checked=self.found.append,
            say=self.said.append,
            seconds_between=0.1,
        )

    def rows_of(self, table: str) -> int:
        """How many rows the evaluations of the table have looked at."""
        return sum(each.found.batch_rows for each in self.found if each.suite.table == table)


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    made: Topic = make_topic(SCHEMA)
    return made


def kept(spark: Any, settings: Settings, table: str) -> list[Any]:
    path = Warehouse.at(settings.warehouse).path(f"quarantine.failed_{table.replace('.', '_')}")
    if TableLog(None, path).newest_version() is None:
        return []
    return sorted(row._values for row in spark.read.format("delta").load(path).collect())


def test_rows_that_fail_are_told_or_kept_and_only_what_came_is_read(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    tables = [
        history(topic.name, name="orders"),
        state("orders", topic=topic.name, key="id", fields={"amount": latest("amount")}),
    ]
    checking = Checking([positive("history.orders"), positive("state.orders", failing="warn")], settings, spark)
    topic.send(orders(1, 2, 3))
    with checking.checks:
        follower = Follower(tables, settings, spark, schemas, checks=checking.checks)
        try:
            follower.until(lambda: {each.suite.table for each in checking.found} == {each.table for each in tables})
            assert not any(each.sentence for each in checking.found)
            topic.send(orders(4, -5))
            follower.until(lambda: sum(bool(each.sentence) for each in checking.found) == 2)
        finally:
            follower.end()
    assert follower.errors == {}
    assert checking.said == []
    # Each row of a history once; of a state the rows that were replaced.
    assert checking.rows_of("history.orders") == 5
    assert checking.rows_of("state.orders") == 5
    assert all("amount" in each.sentence and "1 rows" in each.sentence for each in checking.found if each.sentence)
    assert kept(spark, settings, "history.orders") == ['{"amount": -5}']
    assert kept(spark, settings, "state.orders") == []
    # Another run looks at what comes from then on.
    again = Checking([positive("history.orders")], settings, spark)
    topic.send(orders(6, 7, 8))
    with again.checks:
        follower = Follower(tables[:1], settings, spark, schemas, checks=again.checks)
        try:
            follower.until(lambda: again.rows_of("history.orders") == 3)
        finally:
            follower.end()
    assert not any(each.sentence for each in again.found)


@pytest.mark.rota
def test_a_bad_mart_stops_alone_and_goes_on_once_it_is_repaired(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    @pipeline(name="last", inputs=["state.orders"], version="1")
    def last(rows: Any) -> Any:
        return rows.select("id", "amount")

    @pipeline(name="behind", inputs=["marts.last"], version="1")
    def behind(rows: Any) -> Any:
        return rows.select("id", "amount")

    @pipeline(name="beside", inputs=["state.orders"], version="1")
    def beside(rows: Any) -> Any:
        return rows.select("id", "amount")

    tables = [
        state("orders", topic=topic.name, key="id", fields={"amount": latest("amount")}),
        last,
        behind,
        beside,
    ]

    def lowest(table: str) -> Callable[[], int | None]:
        return lambda: least(spark, settings, table)

    suite = positive("marts.last", failing="stop")
    assert suite.blocking
    topic.send(orders(1, 2))
    first = Checking([suite], settings, spark)
    with first.checks:
        follower = Follower(tables, settings, spark, schemas, checks=first.checks)
        try:
            follower.until(lambda: lowest("marts.behind")() == lowest("marts.beside")() == 1)
            topic.send(orders(-7))
            follower.until(lambda: "marts.last" in follower.stopped and lowest("marts.beside")() == -7)
            topic.send(orders(-8, 3))
            follower.until(lambda: lowest("marts.beside")() == -8)
        finally:
            follower.end()
    # It has the rows that fail, and nothing is made of them.
    assert (lowest("marts.last")(), lowest("marts.behind")()) == (-7, 1)
    assert follower.errors.keys() == {"marts.last"}
    assert "suite positive fails on marts.last" in follower.stopped["marts.last"]
    assert "quarantine.failed_marts_last" in follower.stopped["marts.last"]
    # Whoever starts again before it is repaired is told at once, of rows that are there already.
    again = Checking([suite], settings, spark)
    with again.checks:
        follower = Follower(tables, settings, spark, schemas, checks=again.checks)
        try:
            follower.until(lambda: "marts.last" in follower.stopped)
        finally:
            follower.end()
    assert lowest("marts.behind")() == 1
    topic.send(orders(8))
    repaired = Checking([suite], settings, spark)
    for each in tables[:1]:
        materialize(each, settings, spark, schemas=schemas)
    with repaired.checks:
        follower = Follower(tables, settings, spark, schemas, checks=repaired.checks)
        try:
            follower.until(lambda: lowest("marts.behind")() == 3)
        finally:
            follower.end()
    assert follower.errors == {}


def least(spark: Any, settings: Settings, table: str) -> int | None:
    path = Warehouse.at(settings.warehouse).path(table)
    if TableLog(None, path).newest_version() is None:
        return None
    found: int | None = spark.read.format("delta").load(path).agg({"amount": "min"}).first()[0]
    return found


def test_a_suite_that_cannot_be_evaluated_is_told_of_and_holds_nothing(
    spark: Any, settings: Settings, schemas: Schemas, topic: Topic
) -> None:
    @expectations("history.orders", failing="warn")
    def broken(gxe: Any) -> Any:
        return [gxe.ExpectNothingOfTheKind(column="amount")]

    topic.send(orders(1))
    checking = Checking([broken], settings, spark)
    with checking.checks:
        follower = Follower([history(topic.name, name="orders")], settings, spark, schemas, checks=checking.checks)
        try:
            follower.until(lambda: bool(checking.said))
        finally:
            follower.end()
    assert follower.errors == {}
    assert "suite broken of history.orders could not be evaluated" in checking.said[0]


def test_what_becomes_of_failing_rows_is_declared_once() -> None:
    assert [positive("history.orders", failing=each).keeps for each in ("warn", "quarantine", "stop")] == [
        False,
        True,
        True,
    ]
    assert positive("history.orders", blocking=True, failing="stop").blocking
    with pytest.raises(SuiteError, match="failing is 'drop'"):
        positive("history.orders", failing="drop")
    with pytest.raises(SuiteError, match="leave out one of the two"):
        positive("history.orders", blocking=True, failing="warn")
