"""
Bringing a query's answer up to date, by its declarations and by the batch query, and what the two have otherwise.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import Refresh, newest_made
from fluvial.tables import Pipeline
from fluvial.tables.drive.runner import materialize
from fluvial.tables.refresh.comparison import same_value
from tests.bench.nexmark.queries import Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.bench.nexmark.auction_house import AuctionHouse

SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that something took, and those of the processor in this process and its JVM."""

    wall: float
    processor: float

    @classmethod
    def since(cls, began: "Spent") -> "Spent":
        """What was spent since."""
        now = cls.now()
        return cls(now.wall - began.wall, now.processor - began.processor)

    @classmethod
    def now(cls) -> "Spent":
        """Both clocks."""
        own = psutil.Process()
        times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        return cls(time.monotonic(), sum(each.user + each.system for each in times))

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall + other.wall, self.processor + other.processor)

    def __str__(self) -> str:
        return f"{self.wall:.2f} s, {self.processor:.2f} s of the processor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the query's tables took together, and how each was refreshed."""

    spent: Spent
    refreshes: tuple[Refresh, ...]

    @property
    def roads(self) -> str:
        """The road of each table, in their order."""
        return "+".join(each.road for each in self.refreshes)

    def __str__(self) -> str:
        return f"{self.roads}, {self.spent}"


def refresh(house: "AuctionHouse", query: Query, before: Callable[[Pipeline], None] = lambda _mart: None) -> Answer:
    """Bring a query's tables up to date, one after the other, and call `before` with each one first."""
    spent = Spent(0.0, 0.0)
    for mart in query.marts:
        before(mart)
        began = Spent.now()
        materialize(mart, house.settings, house.spark)
        spent += Spent.since(began)
    return Answer(spent=spent, refreshes=tuple(_refresh_of(house, mart.table) for mart in query.marts))


def write_batch(house: "AuctionHouse", query: Query) -> Spent:
    """Write the batch query's answer over all events to a table of its own."""
    began = Spent.now()
    rows = house.spark.sql(query.sql, **_named(house, query.sql))
    rows.write.format("delta").mode("overwrite").save(_batch_path(house, query))
    return Spent.since(began)


def differences(house: "AuctionHouse", query: Query) -> list[str]:
    """The first rows that the query's table and the batch query's have otherwise, each with where it is."""
    expected = house.spark.read.format("delta").load(_batch_path(house, query))
    found = house.read(query.marts[-1].table).select(*expected.columns)
    exact = [name for name, kind in expected.dtypes if kind not in {"double", "float"}]
    different = _not_same(found.select(exact), expected.select(exact)).limit(SHOWN_MAX).collect()
    if not different and exact != expected.columns:
        different = _not_close(found, expected, exact).limit(SHOWN_MAX).collect()
    return [str(row) for row in different]


def _named(house: "AuctionHouse", sql: str) -> "dict[str, DataFrame]":
    return {topic: rows for topic, rows in house.tables().items() if f"{{{topic}}}" in sql}


def _batch_path(house: "AuctionHouse", query: Query) -> str:
    return f"{house.settings.warehouse}/batch/{query.marts[-1].name}"


def _not_same(found: "DataFrame", expected: "DataFrame") -> "DataFrame":
    """Rows that one side has more often than the other."""
    sides = found.selectExpr("*", "1 AS more_in_table").unionByName(expected.selectExpr("*", "-1 AS more_in_table"))
    return sides.groupBy(*expected.columns).sum("more_in_table").where("`sum(more_in_table)` <> 0")


def _not_close(found: "DataFrame", expected: "DataFrame", exact: list[str]) -> "DataFrame":
    """Rows with the same exact values, of which there are as many, whose other values are far apart."""
    from pyspark.sql.functions import expr

    same = [f"f.`{name}` <=> e.`{name}`" for name in exact]
    close = [same_value(f"f.`{name}`", f"e.`{name}`", close=True) for name in expected.columns if name not in exact]
    both = found.alias("f").join(expected.alias("e"), expr(" AND ".join(same)))
    return both.where(f"NOT ({' AND '.join(close)})")


def _refresh_of(house: "AuctionHouse", table: str) -> Refresh:
    made = newest_made(TableLog(house.spark, house.path(table)))
    assert made is not None
    assert made.stamp.refresh is not None
    return made.stamp.refresh
