"""
What each road of a table with a key costs: `python -m tests.bench.nexmark.roads`, which the weights of
`fluvial.tables.plan.refresh_cost` are rounded from.

Every query has two tables: after each batch one follows by what changed, one by the full query, and the batch query in
SQL is written beside them. Each line has the numbers of rows that are weighed, and the seconds of the processor.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

from fluvial.spark.connect import session_of_its_own
from fluvial.spark.session import build_session
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Pipeline
from fluvial.tables.plan.refresh_cost import Work
from fluvial.tables.refresh.key_refresh import KeyRefresh, refresh_by_keys
from fluvial.testing.embedded import embedded_platform
from tests.bench.nexmark.answers import Spent, write_batch
from tests.bench.nexmark.auction_house import AuctionHouse
from tests.bench.nexmark.generator import Generator
from tests.bench.nexmark.queries import QUERIES, Query
from tests.by_changes import refreshed_by_changes

SIZES = ("100000", "10000w", "10000w", "10000", "1000", "300000", "10000", "1000", "600000", "10000", "1000", "50000")
NAMES = ("q3", "q5", "q7", "q9", "q11", "q20")


@dataclass(frozen=True, slots=True)
class Roads:
    """The tables of one warehouse, and how each is brought up to date."""

    house: AuctionHouse

    def by_changes(self, mart: Pipeline) -> tuple[Work | None, str, Spent]:
        """Bring a table up to date by what changed: what was weighed, the road, and what it took."""
        began = Spent.now()
        with refreshed_by_changes(), session_of_its_own(self.house.spark) as session:
            refresh = KeyRefresh(declaration=mart, warehouse=self._warehouse, session=session)
            plan = refresh.plan(say=_not_said)
            try:
                refresh.carry_out(plan, time.time_ns() // 1_000_000)
            finally:
                plan.release()
        return plan.work, plan.road, Spent.since(began)

    def whole(self, mart: Pipeline) -> Spent:
        """Bring the other table up to date by the full query."""
        began = Spent.now()
        other = replace(mart, name=f"{mart.name}_whole")
        refresh_by_keys(other, self._warehouse, self.house.spark, _not_said, rebuild=True)
        return Spent.since(began)

    @property
    def _warehouse(self) -> Warehouse:
        return Warehouse.at(self.house.settings.warehouse)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nexmark.roads")
    parser.add_argument(
        "--sizes", nargs="+", default=SIZES, help="events of each batch; with a w it only warms the JVM"
    )
    parser.add_argument("--queries", nargs="+", default=NAMES, choices=NAMES, metavar="QUERY")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-roads-") as temporary, embedded_platform() as platform:
        settings = platform.settings(Path(temporary, "warehouse"))
        spark = build_session(settings, "fluvial bench")
        house = AuctionHouse(
            platform=platform, spark=spark, settings=settings, generator=Generator(seed=7, rate=10_000)
        )
        try:
            house.open()
            _measure(house, options.sizes, {name: QUERIES[name] for name in options.queries})
        finally:
            spark.stop()


def _measure(house: AuctionHouse, sizes: Sequence[str], queries: dict[str, Query]) -> None:
    print(f"{'table':<10} {'batch':>7} {'road':<5} {'inputs':>9} {'read':>9} {'table':>9} {'changed':>8} {'keys':>7} "
          f"{'replaced':>8}  processor s: changes, full, SQL")  # fmt: skip
    orders = _orders()
    for size in sizes:
        house.send(int(size.rstrip("w")))
        house.refresh()
        for query in queries.values():
            for mart in query.marts:
                is_last = mart is query.marts[-1]
                _compare(house, mart, query if is_last else None, size, next(orders))


def _orders() -> Iterator[tuple[int, ...]]:
    """In turn each order of three sides, as the first one reads the new versions of the logs."""
    while True:
        yield from permutations(range(3))


def _compare(house: AuctionHouse, mart: Pipeline, query: Query | None, size: str, order: Sequence[int]) -> None:
    roads = Roads(house)
    found: dict[int, tuple[Work | None, str, Spent]] = {}
    sides: list[Callable[[], tuple[Work | None, str, Spent]]] = [
        lambda: roads.by_changes(mart),
        lambda: (None, "full", roads.whole(mart)),
        lambda: (None, "SQL", Spent(0.0, 0.0) if query is None else write_batch(house, query)),
    ]
    for number in order:
        found[number] = sides[number]()
    work, road, _ = found[0]
    seconds = "  ".join(f"{found[number][2].processor:5.2f}" for number in range(3))
    rows = "" if work is None else (
        f"{work.inputs:>9} {work.read:>9} {work.table:>9} {work.changed:>8} {work.keys or 0:>7} {work.replaced or 0:>8}"
    )  # fmt: skip
    print(f"{mart.name:<10} {size:>7} {road:<5} {rows:<55}  {seconds}", flush=True)


def _not_said(_text: str) -> None:
    """What a refresh says is not shown here."""


if __name__ == "__main__":
    main()
