"""
A mart by key and an aggregate beside the full query and a hand-written refresh: `make bench-incremental`.

Each batch appends rows to a history; then each side brings its table up to date, in turn, in one Spark session. The
hand-written side is a stream over the history whose `foreachBatch` recomputes the touched keys and merges them. The
tables are compared after each batch, and a difference is an error. Printed are the seconds of each side and those of
the processor, which other work on the machine disturbs less; the first batch is left out. The rows of a batch are of
keys from everywhere, or with `--in-order` of neighbouring ones, in a history whose files hold keys in their order. With
`--plain` the tables have no number of different items.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fluvial.config import Settings
from fluvial.spark.session import build_session
from fluvial.tables import aggregate, count_distinct, max_, pipeline, sum_
from fluvial.tables.drive.runner import materialize
from tests.bench.incremental.measured import Taken, compare, in_turn, medians, road

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORY = "history.orders"
OURS, PARTS, FULL, BY_HAND = "by key", "aggregate", "full query", "by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is: rows of the history at first, keys, and rows that each batch adds."""

    rows: int
    keys: int
    changed: int
    batches: int
    in_order: bool
    plain: bool


def spend(orders: "DataFrame") -> "DataFrame":
    """The transform: one row a customer, with what no partial result gives."""
    from pyspark.sql import functions as sql

    return orders.groupBy("customer").agg(
        sql.sum("amount").alias("spent"), sql.countDistinct("item").alias("items"), sql.max("id").alias("last_order")
    )


def spend_plain(orders: "DataFrame") -> "DataFrame":
    """The same without the number of different items."""
    from pyspark.sql import functions as sql

    return orders.groupBy("customer").agg(sql.sum("amount").alias("spent"), sql.max("id").alias("last_order"))


class ByHand:
    """A stream over the history that recomputes the keys of each batch and merges them."""

    def __init__(
        self, spark: "SparkSession", history: str, folder: Path, transform: "Callable[[DataFrame], DataFrame]"
    ) -> None:
        self._spark, self._history, self._spend = spark, history, transform
        self.path, self._checkpoint = str(folder / "table"), str(folder / "checkpoint")

    def refresh(self) -> None:
        """Work off what has come."""
        rows = self._spark.readStream.format("delta").load(self._history)
        query = (
            rows.writeStream.foreachBatch(self._merge)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _merge(self, batch: "DataFrame", number: int) -> None:
        from pyspark.sql import functions as sql

        session = batch.sparkSession
        history = session.read.format("delta").load(self._history)
        if number == 0:
            self._spend(history).write.format("delta").option("delta.enableDeletionVectors", "true").save(self.path)
            return
        keys = sql.broadcast(batch.select("customer").distinct())
        self._spend(history.join(keys, "customer", "left_semi")).createOrReplaceTempView("touched")
        session.sql(
            f"MERGE INTO delta.`{self.path}` AS t USING touched AS s ON t.customer = s.customer "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.incremental", description=(__doc__ or "").split("\n")[1]
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the history at first")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--changed", type=int, default=10_000, help="rows that a batch adds")
    parser.add_argument("--batches", type=int, default=4, help="of which the first warms")
    parser.add_argument("--in-order", action="store_true", help="neighbouring keys change")
    parser.add_argument("--plain", action="store_true", help="sums and maxima only")
    work = Work(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="bench-incremental-") as temporary, Progress(transient=True) as progress:
        taken, roads = _measure(work, Path(temporary), progress)
    table = Table("side", "median s", "full query beside it", "median processor s", "full query beside it")
    wall = {side: medians(found).wall for side, found in taken.items()}
    processor = {side: medians(found).processor for side, found in taken.items()}
    for side in taken:
        ratios = [f"{of[FULL] / of[side]:.1f}" for of in (wall, processor)]
        table.add_row(side, f"{wall[side]:.2f}", ratios[0], f"{processor[side]:.2f}", ratios[1])
    console = Console()
    console.print(f"{work.changed:,} new rows, {work.keys:,} keys, a history of {work.rows:,} rows")
    console.print(f"by key and aggregate took the roads: {', '.join(roads)}")
    console.print(table)
    return 0


def _measure(work: Work, folder: Path, progress: Progress) -> tuple[dict[str, list[Taken]], list[str]]:
    settings = Settings(warehouse=str(folder / "warehouse"), spark_master="local[*]")
    spark = build_session(settings, "fluvial bench")
    history = f"{settings.warehouse}/{HISTORY.replace('.', '/')}"
    transform = spend_plain if work.plain else spend
    by_key = pipeline(name="by_key", inputs=[HISTORY], key="customer", version="1")(transform)
    whole = pipeline(name="whole", inputs=[HISTORY], version="1")(transform)
    fields = {"spent": sum_("amount"), "items": count_distinct("item"), "last_order": max_("id")}
    if work.plain:
        del fields["items"]
    parts = aggregate(HISTORY, name="parts", by="customer", fields=fields)
    by_hand = ByHand(spark.newSession(), history, folder / "by_hand", transform)
    sides: dict[str, Callable[[], Any]] = {
        OURS: lambda: materialize(by_key, settings, spark),
        PARTS: lambda: materialize(parts, settings, spark),
        FULL: lambda: materialize(whole, settings, spark),
        BY_HAND: by_hand.refresh,
    }
    paths = {
        OURS: f"{settings.warehouse}/marts/by_key",
        PARTS: f"{settings.warehouse}/marts/parts",
        FULL: f"{settings.warehouse}/marts/whole",
        BY_HAND: by_hand.path,
    }
    taken: dict[str, list[Taken]] = {side: [] for side in sides}
    roads = []
    try:
        _add(spark, history, work, 0, work.rows)
        task = progress.add_task("batches", total=work.batches + 1)
        for number in range(work.batches + 1):
            if number:
                _add(spark, history, work, work.rows + number * work.changed, work.changed)
            for side in in_turn([*sides], number):
                spent = Taken.by(sides[side])
                if number > 1:
                    taken[side].append(spent)
            roads.append(" ".join(road(spark, paths[side]) for side in (OURS, PARTS)))
            compare(spark, FULL, paths)
            progress.advance(task)
    finally:
        spark.stop()
    return taken, roads


def _add(spark: "SparkSession", history: str, work: Work, first: int, count: int) -> None:
    key = f"abs(xxhash64(id, 1)) % {work.keys}"
    if work.in_order:
        # The history at first has keys in the order of its rows; of a batch they are a hundredth of all, side by side.
        batch = first // work.changed
        key = (
            f"id * {work.keys} DIV {work.rows}"
            if first == 0
            else f"({batch * 7919} + id % ({work.keys} DIV 100)) % {work.keys}"
        )
    rows = spark.range(first, first + count, numPartitions=max(4, count // 250_000)).selectExpr(
        "id",
        f"concat('customer ', lpad(CAST({key} AS STRING), 9, '0')) AS customer",
        "concat('item ', abs(xxhash64(id, 2)) % 1000) AS item",
        "abs(xxhash64(id, 3)) % 10000 AS amount",
        "timestamp_micros(id * 1000000) AS at",
    )
    rows.write.format("delta").mode("append").save(history)


if __name__ == "__main__":
    sys.exit(main())
