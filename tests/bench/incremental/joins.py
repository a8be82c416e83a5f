"""
Joins by time that follow two inputs, beside the full join in SQL: `make bench-incremental`.

Orders come a millisecond or so apart, so that all `--rows` of them lie in the last hour, within which their payment may
come; half have theirs. A batch of `--events` is new orders and payments of open ones, half and half. Ours is a declared
`interval_join`; the full join is the same join as one writes it in SQL, over all rows, written in the place of the
table. With it goes a declared `as_of`: each order with where its customer lived then, and in each batch one event in
ten is a customer who moves. Each side brings its table up to date in turn, in one Spark session. The tables are
compared after each batch, and a difference is an error. The first batch is left out.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fluvial.config import Settings
from fluvial.spark.session import build_session
from fluvial.tables import as_of, interval_join
from fluvial.tables.drive.runner import materialize
from tests.bench.incremental.measured import Taken, compare, in_turn, medians, road

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS, PAYMENTS, HOMES = "history.orders", "history.payments", "state.homes"
OPEN_MICROS = 3_600_000_000
MOVES_ONE_IN = 10
INTERVAL, INTERVAL_FULL = "interval_join", "full join in SQL"
AS_OF, AS_OF_FULL = "as_of", "full as-of join in SQL"
FULL_OF = {INTERVAL: INTERVAL_FULL, AS_OF: AS_OF_FULL}
PAID = interval_join(
    ORDERS,
    PAYMENTS,
    name="paid",
    on="order_id",
    times=("ordered_at", "paid_at"),
    within=("0 minutes", "1 hour"),
    how="left",
    select=["orders.customer", "orders.amount", "payments.paid_at"],
)
AT_HOME = as_of(
    ORDERS,
    HOMES,
    name="at_home",
    on="customer",
    time="ordered_at",
    select=["orders.order_id", "orders.amount", "homes.city"],
    period="1 hour",
)
JOINS = {
    INTERVAL_FULL: "SELECT o.order_id, o.customer, o.amount, p.paid_at FROM {orders} o LEFT JOIN {payments} p "
    "ON o.order_id = p.order_id AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL 1 HOUR",
    AS_OF_FULL: "SELECT o.customer, o.order_id, o.amount, h.city FROM {orders} o JOIN {homes} h ON o.customer = "
    "h.customer AND h.valid_from <= o.ordered_at AND (h.valid_to > o.ordered_at OR h.valid_to IS NULL)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is: orders whose interval is open at first, and events that each batch adds."""

    rows: int
    events: int
    batches: int
    customers: int
    only: str | None

    @property
    def sides(self) -> list[str]:
        """What is measured."""
        return [side for ours, full in FULL_OF.items() if self.only in (None, ours) for side in (ours, full)]


class Events:
    """Orders, payments and homes, batch by batch; nothing of them is drawn by chance."""

    def __init__(self, spark: "SparkSession", settings: Settings, work: Work) -> None:
        self._spark, self._work, self._root = spark, work, settings.warehouse
        self._orders = self._paid = 0

    def begin(self) -> None:
        """All orders that are open, every other one paid, and where each customer lives."""
        homes = self._spark.range(self._work.customers).selectExpr(
            "concat('customer ', id) AS customer",
            "concat('city ', id % 500) AS city",
            "timestamp_micros(0) AS valid_from",
            "CAST(NULL AS TIMESTAMP) AS valid_to",
        )
        homes.write.format("delta").option("delta.enableDeletionVectors", "true").save(self.path(HOMES))
        self._order(self._work.rows)
        self._pay("id % 2 = 0", self._work.rows)

    def add(self, batch: int) -> None:
        """One batch."""
        half = self._work.events // 2
        self._order(half)
        # A stride through the orders that are open; those with an even number were paid at the beginning.
        step = max(2, self._work.rows // half // 2 * 2)
        self._pay(f"id % {step} = {(2 * batch + 1) % step}", self._orders)
        if AS_OF in self._work.sides:
            self._move(batch, self._work.events // MOVES_ONE_IN)

    def path(self, table: str) -> str:
        """Where a table lies."""
        return f"{self._root}/{table.replace('.', '/')}"

    def _time(self, number: str) -> str:
        return f"timestamp_micros(CAST({number} * {OPEN_MICROS / self._work.rows} AS BIGINT))"

    def _order(self, count: int) -> None:
        rows = self._spark.range(self._orders, self._orders + count, numPartitions=max(2, count // 250_000))
        self._orders += count
        rows.selectExpr(
            "id AS order_id",
            f"concat('customer ', abs(xxhash64(id, 1)) % {self._work.customers}) AS customer",
            "abs(xxhash64(id, 2)) % 10000 AS amount",
            f"{self._time('id')} AS ordered_at",
        ).write.format("delta").mode("append").save(self.path(ORDERS))

    def _pay(self, which: str, until: int) -> None:
        """Payments of some of the open orders, made now."""
        rows = self._spark.range(max(0, until - self._work.rows), until, numPartitions=2).where(which)
        rows.selectExpr(
            "id AS order_id", f"least({self._time(str(until))}, {self._time('id')} + INTERVAL 59 MINUTES) AS paid_at"
        ).write.format("delta").mode("append").save(self.path(PAYMENTS))

    def _move(self, batch: int, count: int) -> None:
        """So many customers move, in the middle of what was ordered in this batch."""
        at, homes = self._time(str(self._orders - self._work.events // 4)), f"delta.`{self.path(HOMES)}`"
        moved = sorted({(number * 7919 + batch) % self._work.customers for number in range(count)})
        names = ", ".join(f"'customer {number}'" for number in moved)
        rows = ", ".join(f"('customer {number}', 'city of {batch}', {at}, NULL)" for number in moved)
        self._spark.sql(f"UPDATE {homes} SET valid_to = {at} WHERE valid_to IS NULL AND customer IN ({names})")
        self._spark.sql(f"INSERT INTO {homes} VALUES {rows}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.incremental.joins", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="orders whose interval is open")
    parser.add_argument("--events", type=int, default=10_000, help="events that a batch adds")
    parser.add_argument("--batches", type=int, default=5, help="of which the first warms")
    parser.add_argument("--customers", type=int, default=100_000)
    parser.add_argument("--only", choices=[*FULL_OF], help="one join and its full one")
    work = Work(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="bench-joins-") as temporary:
        taken, roads = _measure(work, Path(temporary))
    table = Table("side", "median s", "full join beside it", "median processor s", "full join beside it")
    for side, found in taken.items():
        own, full = medians(found), medians(taken[FULL_OF.get(side, side)])
        times = ("", "") if side not in FULL_OF else (
            f"{full.wall / own.wall:.1f}", f"{full.processor / own.processor:.1f}")  # fmt: skip
        table.add_row(side, f"{own.wall:.2f}", times[0], f"{own.processor:.2f}", times[1])
    console = Console(width=110)
    console.print(f"{work.events:,} events a batch, {work.rows:,} orders whose interval is open")
    for side, found_roads in roads.items():
        console.print(f"{side} took the roads: {', '.join(f'{each} {n}' for each, n in found_roads.items())}")
    console.print(table)
    return 0


def _measure(work: Work, folder: Path) -> tuple[dict[str, list[Taken]], dict[str, Counter[str]]]:
    settings = Settings(warehouse=str(folder / "warehouse"), spark_master="local[*]")
    spark = build_session(settings, "fluvial bench")
    events = Events(spark, settings, work)
    paths = {
        INTERVAL: events.path(PAID.table),
        AS_OF: events.path(AT_HOME.table),
        INTERVAL_FULL: str(folder / "interval"),
        AS_OF_FULL: str(folder / "as_of"),
    }
    tables = {"orders": ORDERS, "payments": PAYMENTS, "homes": HOMES}

    def full(side: str) -> Callable[[], Any]:
        join = JOINS[side].format(**{name: f"delta.`{events.path(table)}`" for name, table in tables.items()})
        return lambda: spark.sql(join).write.format("delta").mode("overwrite").save(paths[side])

    does: dict[str, Callable[[], Any]] = {
        INTERVAL: lambda: materialize(PAID, settings, spark),
        AS_OF: lambda: materialize(AT_HOME, settings, spark),
        **{side: full(side) for side in JOINS},
    }
    taken: dict[str, list[Taken]] = {side: [] for side in work.sides}
    roads: dict[str, Counter[str]] = {side: Counter() for side in work.sides if side in FULL_OF}
    try:
        events.begin()
        for number in range(work.batches + 1):
            if number:
                events.add(number)
            for side in in_turn(work.sides, number):
                spent = Taken.by(does[side])
                if number > 1:
                    taken[side].append(spent)
            for side, found in roads.items():
                found[road(spark, paths[side])] += number > 1
                compare(spark, FULL_OF[side], {each: paths[each] for each in (side, FULL_OF[side])})
    finally:
        spark.stop()
    return taken, roads


if __name__ == "__main__":
    sys.exit(main())
