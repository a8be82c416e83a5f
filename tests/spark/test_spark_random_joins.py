"""
Joins by time of random events, refreshed at random times and stopped at each step of a commit.

Whatever happened, the table is what plain Python makes of the inputs at the versions that the table's stamp names.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from stopped_refresh import StoppedError, stopped

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.tables import Pipeline, as_of, interval_join
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.refresh import key_plan, key_refresh

pytestmark = [pytest.mark.spark, pytest.mark.rota]

ORDERS, PAYMENTS, VERSIONS = "history.orders", "history.payments", "state.cities"
BEGINNING = datetime(2025, 3, 1, tzinfo=UTC)
CUSTOMERS = 4
CHANGES = 6
REACHES = (
    ("0 minutes", "1 hour"),
    ("-20 minutes", "20 minutes"),
    ("-2 hours", "-30 minutes"),
    ("0 minutes", "0 minutes"),
)


class Tables:
    """Orders, payments and the cities of customers, with the time from which each held."""

    def __init__(self, random: Random, spark: Any, settings: Settings) -> None:
        self._random, self._spark, self._settings = random, spark, settings
        self._next = 0
        self._write(VERSIONS, self._moved(), "customer string, city string, valid_from timestamp, valid_to timestamp, "
                    "is_current boolean")  # fmt: skip
        for table in (ORDERS, PAYMENTS):
            self.add(table, 20)

    def _moved(self) -> list[tuple[Any, ...]]:
        """Where each customer has lived."""
        rows = []
        for customer in range(CUSTOMERS):
            times = sorted({self._moment() for _ in range(self._random.randint(0, 3))})
            for at, until in zip(times, [*times[1:], None], strict=True) if times else ():
                rows.append((f"c{customer}", f"city {self._next}", at, until, until is None))
                self._next += 1
        return rows

    def _write(self, table: str, rows: list[tuple[Any, ...]], columns: str) -> None:
        frame = self._spark.createDataFrame(rows, columns).coalesce(1)
        writer = frame.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true")
        writer.save(self.path(table))

    def path(self, table: str) -> str:
        return f"{self._settings.warehouse}/{table.replace('.', '/')}"

    def name(self, table: str) -> str:
        return f"delta.`{self.path(table)}`"

    def sql(self, statement: str) -> None:
        self._spark.sql(statement)

    def add(self, table: str, count: int) -> None:
        """Append events, some of them late and some without a time or a customer."""
        rows = []
        for _ in range(count):
            self._next += 1
            rows.append((self._next, self._customer(), self._moment() if self._random.random() > 0.05 else None))
        self._write(table, rows, "id bigint, customer string, at timestamp")

    def move(self) -> None:
        """Let a customer move, now or, when it becomes known late, in between."""
        customer, city, at = f"c{self._random.randrange(CUSTOMERS)}", f"city {self._next}", self._moment()
        self._next += 1
        name, moment = self.name(VERSIONS), f"timestamp'{at:%Y-%m-%d %H:%M:%S} UTC'"
        held = f"customer = '{customer}' AND valid_from <= {moment} AND (valid_to > {moment} OR valid_to IS NULL)"
        found = self._spark.sql(f"SELECT valid_to FROM {name} WHERE {held}").collect()
        until = f"timestamp'{_utc(found[0][0]):%Y-%m-%d %H:%M:%S} UTC'" if found and found[0][0] else "NULL"
        if not found:
            after = f"customer = '{customer}' AND valid_from > {moment}"
            first = self._spark.sql(f"SELECT min(valid_from) FROM {name} WHERE {after}").collect()[0][0]
            until = f"timestamp'{_utc(first):%Y-%m-%d %H:%M:%S} UTC'" if first else "NULL"
        self.sql(f"UPDATE {name} SET valid_to = {moment}, is_current = false WHERE {held}")
        self.sql(f"INSERT INTO {name} VALUES ('{customer}', '{city}', {moment}, {until}, {until} IS NULL)")

    def change(self) -> None:
        """Add, correct or remove some rows."""
        random = self._random
        table = random.choice((ORDERS, PAYMENTS))
        match random.choice(("add", "add", "add", "move", "move", "correct", "remove", "rename", "optimize")):
            case "move":
                self.move()
            case "correct":
                minutes = random.choice((-90, -7, 30))
                self.sql(f"UPDATE {self.name(table)} SET at = at + INTERVAL {minutes} MINUTES WHERE id % 7 = 3")
            case "remove":
                self.sql(f"DELETE FROM {self.name(random.choice((table, VERSIONS)))} WHERE "
                         f"customer = 'c{random.randrange(CUSTOMERS)}'")  # fmt: skip
            case "rename":
                self.sql(f"UPDATE {self.name(VERSIONS)} SET city = upper(city) WHERE hash(city) % 3 = 0")
            case "optimize":
                self.sql(f"OPTIMIZE {self.name(random.choice((table, VERSIONS)))}")
            case _:
                self.add(table, random.randint(1, 5))

    def check(self, mart: Pipeline, expected: Callable[..., list[Any]]) -> str:
        """Compare the table with what it must be; the road that it was brought there by."""
        made = newest_made(TableLog(self._spark, self.path(mart.table)))
        assert made is not None
        assert made.stamp.refresh is not None
        inputs = [
            self._spark.read.format("delta").option("versionAsOf", at.version).load(self.path(table)).collect()
            for table, at in made.stamp.inputs.items()
        ]
        found = [tuple(row)[2:] for row in self._spark.read.format("delta").load(self.path(mart.table)).collect()]
        assert sorted(found, key=str) == sorted(expected(*inputs), key=str), made.stamp.refresh
        return made.stamp.refresh.road

    def _customer(self) -> str | None:
        return self._random.choice([None, *(f"c{each}" for each in range(CUSTOMERS))])

    def _moment(self) -> datetime:
        return BEGINNING + timedelta(minutes=self._random.randrange(48 * 60))


def _utc(moment: datetime) -> datetime:
    """A timestamp as Spark gives it: of this machine's zone, without saying so."""
    return moment.astimezone(UTC)


def _refreshed(
    random: Random, tables: Tables, mart: Pipeline, expected: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tables of this size are always cheaper by the full query.
    monkeypatch.setattr(key_plan, "why_full", lambda work: "it is" if work.keys and random.random() < 0.1 else None)
    roads = []
    for _ in range(CHANGES):
        if random.random() < 0.5:
            with stopped(random, monkeypatch, key_refresh), suppress(StoppedError):
                materialize(mart, tables._settings, tables._spark)
        materialize(mart, tables._settings, tables._spark)
        roads.append(tables.check(mart, expected))
        for _ in range(random.randint(1, 3)):
            tables.change()
    materialize(mart, tables._settings, tables._spark)
    roads.append(tables.check(mart, expected))
    monkeypatch.setattr(key_plan, "why_full", lambda _work: None)
    tables.add(ORDERS, 3)
    materialize(mart, tables._settings, tables._spark)
    assert tables.check(mart, expected) == "keys", roads
    assert verify(mart, tables._settings, tables._spark, schemas=None).is_exact  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_pairs_within_an_interval_are_always_those_of_the_inputs(
    seed: int, spark: Any, warehouse_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    within, how = REACHES[seed % len(REACHES)], ("left", "inner")[seed // len(REACHES) % 2]
    mart = interval_join(
        ORDERS, PAYMENTS, name="paid", on="customer", times=("at", "at"), within=within, how=how,  # type: ignore[arg-type]
        select=["orders.id", "payments.id AS payment"],
    )  # fmt: skip
    least, most = (_minutes(each) for each in within)

    def expected(orders: list[Any], payments: list[Any]) -> list[Any]:
        rows = []
        for order in orders:
            if order.at is None:
                continue
            paid = [
                payment.id
                for payment in payments
                if payment.at is not None
                and order.customer is not None
                and payment.customer == order.customer
                and least <= payment.at - order.at <= most
            ]
            rows.extend((order.id, each) for each in (paid or ([None] if how == "left" else [])))
        return rows

    _refreshed(random, Tables(random, spark, warehouse_settings), mart, expected, monkeypatch)


def _minutes(text: str) -> timedelta:
    number, unit = text.split()
    return timedelta(**{unit if unit.endswith("s") else f"{unit}s": int(number)})


@pytest.mark.parametrize("seed", range(8))
def test_an_event_always_has_what_held_at_its_time(
    seed: int, spark: Any, warehouse_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    how, period = ("left", "inner")[seed % 2], random.choice(("1 hour", "6 hours", "1 day"))
    mart = as_of(
        ORDERS, VERSIONS, name="at_home", on="customer", time="at", how=how, period=period,  # type: ignore[arg-type]
        select=["orders.id", "cities.city", "cities.valid_from"],
    )  # fmt: skip

    def expected(orders: list[Any], versions: list[Any]) -> list[Any]:
        rows = []
        for order in orders:
            if order.at is None:
                continue
            held = [
                (each.city, each.valid_from)
                for each in versions
                if each.customer == order.customer
                and each.valid_from <= order.at
                and (each.valid_to is None or each.valid_to > order.at)
            ]
            rows.extend((order.id, *each) for each in (held or ([(None, None)] if how == "left" else [])))
        return rows

    _refreshed(random, Tables(random, spark, warehouse_settings), mart, expected, monkeypatch)
