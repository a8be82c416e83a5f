"""
What the programs of this folder have in common: sides that bring their tables up to date in turn, and are compared.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds that a refresh took, and those of the processor in this process and its JVM."""

    wall: float
    processor: float

    @classmethod
    def by(cls, work: Callable[[], Any]) -> "Taken":
        """What something takes."""
        processor, began = _processor(), time.monotonic()
        work()
        wall = time.monotonic() - began
        return cls(wall, _processor() - processor)


def medians(taken: Sequence[Taken]) -> Taken:
    """The medians of both."""
    return Taken(median(each.wall for each in taken), median(each.processor for each in taken))


def in_turn(sides: Sequence[str], number: int) -> list[str]:
    """The sides in the order of a batch: each is the first to read what is new in turn."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def road(spark: "SparkSession", path: str) -> str:
    """The road of a table's last refresh."""
    made = newest_made(TableLog(spark, path))
    assert made is not None
    assert made.stamp.refresh is not None
    return made.stamp.refresh.road


def compare(spark: "SparkSession", expected: str, paths: Mapping[str, str]) -> None:
    """Raise where a table has other rows than the one that is `expected`, in the columns of that one."""
    tables = {side: spark.read.format("delta").load(path) for side, path in paths.items()}
    wanted = tables.pop(expected)
    for side, table in tables.items():
        found = table.select(*wanted.columns)
        differences = found.exceptAll(wanted).count() + wanted.exceptAll(found).count()
        if differences:
            raise AssertionError(f"{side} differs from the {expected} in {differences} rows")


def _processor() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)
