"""
A graph of marts of which one has something to do: what each of the others costs a round: `make bench-incremental`.

Each mart is an aggregate of a history of its own. In a round one history gets rows, another each time. Then the others
are asked for one after the other: by `materialize` in a session of Spark, as in `--continuous`, and by the look without
Spark that a run in Dagster has of a table first. One that is not skipped is an error. The first round is left out.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fluvial.config import Settings
from fluvial.spark.session import build_session
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Pipeline, aggregate, count, max_, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh.transforms import skipped_pipeline
from tests.bench.incremental.measured import Taken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
AIM_MS = 10
BY_SPARK, BEFORE_SPARK, CHANGED = "idle, by materialize", "idle, by the look before Spark", "the changed one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How many marts there are, and how often one of them changes."""

    marts: int
    rounds: int


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.incremental.idle", description=__doc__)
    parser.add_argument("--marts", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5, help="of which the first is left out")
    work = Work(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as temporary:
        taken = _measure(work, Path(temporary))
    table = Table("mart", "median ms", "greatest round, ms", "median processor ms")
    for side, found in taken.items():
        wall = [each.wall * 1000 for each in found]
        processor = median(each.processor for each in found) * 1000
        table.add_row(side, f"{median(wall):.1f}", f"{max(wall):.1f}", f"{processor:.1f}")
    console = Console(width=110)
    console.print(f"{work.marts} marts, one of which has {ROWS:,} new rows; aim: {AIM_MS} ms for each that has none")
    console.print(table)
    return 0


def _measure(work: Work, folder: Path) -> dict[str, list[Taken]]:
    settings = Settings(warehouse=str(folder / "warehouse"), spark_master="local[*]")
    spark, warehouse = build_session(settings, "fluvial bench"), Warehouse.at(settings.warehouse)
    fields = {"orders": count(), "spent": sum_("amount"), "last": max_("id")}
    marts = [
        aggregate(f"history.orders_{number}", name=f"spending_{number}", by="customer", fields=fields)
        for number in range(work.marts)
    ]

    def run(mart: Pipeline) -> RunResult:
        return materialize(mart, settings, spark)

    taken: dict[str, list[Taken]] = {side: [] for side in (BY_SPARK, BEFORE_SPARK, CHANGED)}
    try:
        for mart in marts:
            _add(spark, warehouse, mart, 0)
            run(mart)
        for number in range(work.rounds):
            changed = marts[number % len(marts)]
            idle = [mart for mart in marts if mart is not changed]
            _add(spark, warehouse, changed, number + 1)
            spent = {
                BY_SPARK: _each(idle, run, skipped=True),
                BEFORE_SPARK: _each(idle, lambda mart: skipped_pipeline(mart, warehouse), skipped=True),
                CHANGED: _each([changed], run, skipped=False),
            }
            for side in taken if number else ():
                taken[side].append(spent[side])
    finally:
        spark.stop()
    return taken


def _each(marts: Sequence[Pipeline], bring: Callable[[Pipeline], RunResult | None], *, skipped: bool) -> Taken:
    """What one of these marts takes, on average, all of which must have nothing to do, or all something."""
    results: list[RunResult | None] = []
    spent = Taken.by(lambda: results.extend(map(bring, marts)))
    for mart, result in zip(marts, results, strict=True):
        if (result is not None and result.skipped) != skipped:
            raise AssertionError(f"{mart.table} was {'not ' if skipped else ''}skipped")
    return Taken(spent.wall / len(marts), spent.processor / len(marts))


def _add(spark: "SparkSession", warehouse: Warehouse, mart: Pipeline, number: int) -> None:
    rows = spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=1).selectExpr(
        "id", "concat('customer ', id % 100) AS customer", "id % 777 AS amount"
    )
    rows.write.format("delta").mode("append").save(warehouse.path(mart.inputs[0]))


if __name__ == "__main__":
    sys.exit(main())
