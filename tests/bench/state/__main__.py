"""
Our keyed tables beside the pipeline that one writes by hand: `make bench-state`, or `python -m tests.bench.state`.

Both sides read the same topic, in turn, block of batches after block, in one Spark session; the hand-written side is
the usual `foreachBatch` and MERGE, once as commonly written and once tuned. At the end the tables are compared, and a
difference is an error. Printed are means over the batches after the first three, upkeep included, and their ratios.
FULL=1 measures every row; what a stopped run measured is kept in `--results` and not measured again.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fluvial.config import Settings
from fluvial.entities import Declaration, compacted, count, latest, max_, mean, min_, state, sum_
from fluvial.entities.runner import materialize
from fluvial.entities.table_index import TableIndexes
from fluvial.spark.session import build_session
from tests.bench.state.by_hand import ByHand
from tests.bench.state.events import TOPIC, Contract, Source, broker
from tests.bench.state.rows import DEFAULT, FULL, Row, Side

BLOCK = 5
OURS, COMMON, TUNED = "fluvial", "by hand", "by hand, tuned"
_FOLDS = {
    "events": count(),
    "total": sum_("humidity"),
    "coldest": min_("celsius"),
    "warmest": max_("celsius"),
    "mean": mean("pascal"),
    "sequence": latest("sequence"),
}


class Ours:
    """Our table, brought up to date by a process that goes on running."""

    def __init__(self, spark: Any, folder: Path, servers: str, *, folds: bool) -> None:
        self._spark = spark
        self._settings = Settings(warehouse=str(folder), bootstrap_servers=servers)
        self._declaration: Declaration = (
            state(TOPIC, topic=TOPIC, key="sensor", fields=_FOLDS) if folds else compacted(TOPIC)
        )
        self._indexes = TableIndexes()
        self.path = str(folder / ("state" if folds else "compacted") / TOPIC)

    def run(self, events_a_batch: int) -> list[float]:
        """Work off what is in the topic; the seconds of each batch."""
        seconds = []
        while True:
            began = time.monotonic()
            result = materialize(
                self._declaration,
                self._settings,
                self._spark,
                schemas=Contract(),
                indexes=self._indexes,
                records_max=events_a_batch,
            )
            if result.skipped:
                return seconds
            seconds.append(time.monotonic() - began)


def measure(row: Row, sides: Iterable[str], progress: Progress) -> dict[str, Side]:
    """Run one row. Raises SystemExit when the tables differ."""
    found = {name: Side() for name in sides}
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            source = Source(servers, row.keys)
            task = progress.add_task(str(row), total=row.batches)
            source.write_all_keys()
            spark = build_session(Settings(warehouse=str(folder / "ours"), spark_conf={"spark.driver.memory": "4g"}))
            made: dict[str, Ours | ByHand] = {
                OURS: Ours(spark, folder / "ours", servers, folds=row.folds),
                COMMON: ByHand(spark, folder / "common", servers, tuned=False, folds=row.folds),
                TUNED: ByHand(spark, folder / "tuned", servers, tuned=True, folds=row.folds),
            }
            pipelines = {name: made[name] for name in found}
            for pipeline in pipelines.values():
                pipeline.run(row.keys)
            for _ in range(0, row.batches, BLOCK):
                block = min(BLOCK, row.batches - len(found[OURS].seconds))
                source.write(row.events * block)
                for name, pipeline in pipelines.items():
                    before = _bytes(pipeline.path)
                    found[name].seconds += pipeline.run(row.events)
                    # Nothing is removed while this runs, so what there is more of was written.
                    found[name].written += _bytes(pipeline.path) - before
                progress.advance(task, block)
            _compare(spark, {name: pipeline.path for name, pipeline in pipelines.items()}, row)
    return found


def _bytes(path: str) -> int:
    return sum(entry.stat().st_size for entry in Path(path).rglob("*") if entry.is_file())


def _compare(spark: Any, paths: dict[str, str], row: Row) -> None:
    columns = ["sensor", *(_FOLDS if row.folds else ("sequence", "celsius", "remark", "at"))]
    # Sums of floating-point numbers depend on the order of their terms.
    shown = [f"round({name}, 6) AS {name}" if name in {"mean"} else name for name in columns]
    ours = spark.read.format("delta").load(paths[OURS]).selectExpr(*shown)
    for name, path in paths.items():
        theirs = spark.read.format("delta").load(path).selectExpr(*shown)
        if ours.exceptAll(theirs).count() or theirs.exceptAll(ours).count():
            raise SystemExit(f"{row}: the tables of {OURS} and {name} differ")


def _report(results: dict[str, dict[str, Side]]) -> Table:
    table = Table("work", "fluvial s", "by hand s", "ratio", "tuned s", "ratio", "MB a batch", "by hand MB")
    for title, sides in results.items():
        ours, common, tuned = (sides.get(name) for name in (OURS, COMMON, TUNED))
        if ours is None:
            continue
        table.add_row(
            title,
            f"{ours.mean:.2f} ({ours.median:.2f})",
            *_beside(ours, common),
            *_beside(ours, tuned),
            f"{ours.megabytes_a_batch:.2f}",
            "" if common is None else f"{common.megabytes_a_batch:.1f}",
        )
    return table


def _beside(ours: Side, other: Side | None) -> tuple[str, str]:
    return ("", "") if other is None else (f"{other.mean:.2f} ({other.median:.2f})", f"{other.mean / ours.mean:.1f}")


def main() -> int:
    """Measure, print, and keep what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.state", description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--keys", type=int, help="measure one row: keys of the table")
    parser.add_argument("--events", type=int, default=10_000, help="events of a batch (with --keys)")
    parser.add_argument("--batches", type=int, default=20, help="batches (with --keys)")
    parser.add_argument("--folds", action="store_true", help="folds instead of the latest event (with --keys)")
    parser.add_argument("--sides", default=f"{COMMON},{TUNED}", help="whom to measure beside ours")
    parser.add_argument("--results", type=Path, default=Path(".fluvial/bench-state.json"), help="what is kept")
    words = parser.parse_args()
    rows: tuple[Row, ...] = FULL if os.environ.get("FULL") else DEFAULT
    if words.keys:
        rows = (Row(keys=words.keys, events=words.events, batches=words.batches, folds=words.folds),)
    sides = (OURS, *filter(None, words.sides.split(",")))
    kept: dict[str, Any] = json.loads(words.results.read_text()) if words.results.exists() else {}
    console = Console()
    with Progress(console=Console(stderr=True)) as progress:
        for row in rows:
            title = f"{row}, {row.batches} batches"
            if title not in kept:
                found = measure(row, sides, progress)
                kept[title] = {name: [side.seconds, side.written] for name, side in found.items()}
                words.results.parent.mkdir(parents=True, exist_ok=True)
                words.results.write_text(json.dumps(kept))
    console.print(_report({title: {name: Side(*each) for name, each in of.items()} for title, of in kept.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
