"""
A mart of rows beside a bare append of the same new rows and the full query: `make bench-incremental`.

Each batch appends rows to a history; then each side brings its table up to date, in turn, in one Spark session: ours by
`materialize`; "bare append" reads the new rows from the history's newest version alone, runs the same transform over
them and appends the answer; "by hand" is a stream over the history with a checkpoint, which appends as well. The tables
are compared after each batch, and a difference is an error. The first batch is left out. With `--updates` a batch also
changes so many rows of the history, which bare append and stream cannot follow: only ours and the full query run.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.spark.session import build_session
from fluvial.tables import pipeline
from fluvial.tables.drive.runner import materialize
from tests.bench.incremental.measured import Taken, compare, in_turn, road

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORY = "history.orders"
OURS, BARE, BY_HAND, FULL = "by rows", "bare append", "stream by hand", "full query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is: rows of the history at first, rows that each batch adds, and rows that it changes."""

    rows: int
    added: int
    batches: int
    updates: int


def large(orders: "DataFrame") -> "DataFrame":
    """The transform: a filter, an expression and an explode."""
    rows = orders.where("amount > 1000").selectExpr("id", "customer", "amount * 2 AS doubled", "item")
    return rows.selectExpr("*", "explode(array(item, customer)) AS tag").drop("item")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.incremental.rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the history at first")
    parser.add_argument("--added", type=int, default=100_000, help="rows that a batch adds")
    parser.add_argument("--batches", type=int, default=5, help="of which the first warms")
    parser.add_argument("--updates", type=int, default=0, help="rows that a batch changes")
    work = Work(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="bench-rows-") as temporary:
        taken, roads = _measure(work, Path(temporary))
    table = Table("side", "median s", "of a bare append")
    least = median(taken[BARE]) if taken.get(BARE) else None
    for side, found in taken.items():
        table.add_row(side, f"{median(found):.2f}", "" if least is None else f"{median(found) / least:.2f}")
    console = Console()
    console.print(f"{work.added:,} new rows, {work.updates:,} changed ones, a history of {work.rows:,} rows")
    console.print(f"ours took the roads: {', '.join(roads)}")
    console.print(table)
    return 0


def _measure(work: Work, folder: Path) -> tuple[dict[str, list[float]], list[str]]:
    settings = Settings(warehouse=str(folder / "warehouse"), spark_master="local[*]")
    spark = build_session(settings, "fluvial bench")
    history = f"{settings.warehouse}/{HISTORY.replace('.', '/')}"
    by_rows = pipeline(name="by_rows", inputs=[HISTORY], version="1")(large)
    paths = {
        OURS: f"{settings.warehouse}/marts/by_rows",
        BARE: str(folder / "bare"),
        BY_HAND: str(folder / "stream"),
        FULL: str(folder / "full"),
    }

    def bare() -> None:
        log = TableLog(spark, history)
        added = log.added_files(log.newest_version() or 0) or []
        rows = spark.read.parquet(*(f"{history}/{each}" for each in added))
        large(rows).write.format("delta").mode("append").save(paths[BARE])

    def by_hand() -> None:
        rows = spark.readStream.format("delta").load(history)
        writer = large(rows).writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(paths[BY_HAND]).awaitTermination()

    def full() -> None:
        large(spark.read.format("delta").load(history)).write.format("delta").mode("overwrite").save(paths[FULL])

    sides: dict[str, Callable[[], Any]] = {OURS: lambda: materialize(by_rows, settings, spark), FULL: full}
    if not work.updates:
        sides |= {BARE: bare, BY_HAND: by_hand}
    taken: dict[str, list[float]] = {side: [] for side in sides}
    roads = []
    try:
        for number in range(work.batches + 1):
            _change(spark, history, work, number)
            for side in in_turn([*sides], number):
                spent = Taken.by(sides[side])
                if number > 1:
                    taken[side].append(spent.wall)
            roads.append(road(spark, paths[OURS]))
            compare(spark, FULL, {side: paths[side] for side in sides})
    finally:
        spark.stop()
    return taken, roads


def _change(spark: "SparkSession", history: str, work: Work, number: int) -> None:
    first, count = (0, work.rows) if number == 0 else (work.rows + number * work.added, work.added)
    rows = spark.range(first, first + count, numPartitions=max(2, count // 250_000)).selectExpr(
        "id",
        "concat('customer ', abs(xxhash64(id, 1)) % 100000) AS customer",
        "concat('item ', abs(xxhash64(id, 2)) % 1000) AS item",
        "abs(xxhash64(id, 3)) % 10000 AS amount",
    )
    rows.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true").save(history)
    if work.updates and number:
        every = work.rows // work.updates
        spark.sql(f"UPDATE delta.`{history}` SET amount = amount + 1 WHERE id < {work.rows} AND id % {every} = 0")


if __name__ == "__main__":
    sys.exit(main())
