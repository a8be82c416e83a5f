"""
Keyed tables, ours and the hand-written ones, kept up to date from one topic in turn.
"""

import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.progress import Progress

from fluvial.config import Settings
from fluvial.entities import Declaration, compacted, count, latest, max_, mean, min_, state, sum_
from fluvial.entities.runner import materialize
from fluvial.entities.table_index import TableIndexes
from fluvial.spark.session import build_session
from tests.bench.state.by_hand import ByHand
from tests.bench.state.events import TOPIC, Contract, Source, broker
from tests.bench.state.reading import Reads, time_reads
from tests.bench.state.rows import BLOCK, Row, Side

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
        # As `fluvial run --continuous` has it.
        self._aside = ThreadPoolExecutor(max_workers=1)
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
                aside=self._aside.submit,
            )
            if result.skipped:
                # What is still under way beside the batches belongs to them.
                self._aside.submit(lambda: None).result()
                if seconds:
                    seconds[-1] += time.monotonic() - began
                return seconds
            seconds.append(time.monotonic() - began)


def measure(
    rows: list[Row], sides: Iterable[str], progress: Progress, reads_of: Row | None
) -> tuple[dict[Row, dict[str, Side]], Reads | None]:
    """
    Run rows that go into the same tables; after `reads_of`, if it is among them, reading ours is measured as well.

    Raises SystemExit when the tables differ.
    """
    found = {row: {name: Side() for name in (OURS, *sides)} for row in rows}
    reads = None
    keys, folds = rows[0].keys, rows[0].folds
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            source = Source(servers, keys)
            source.write_all_keys()
            spark = build_session(Settings(warehouse=str(folder / "ours"), spark_conf={"spark.driver.memory": "4g"}))
            ours = Ours(spark, folder / "ours", servers, folds=folds)
            theirs = {
                COMMON: ByHand(spark, folder / "common", servers, tuned=False, folds=folds),
                TUNED: ByHand(spark, folder / "tuned", servers, tuned=True, folds=folds),
            }
            theirs = {name: theirs[name] for name in sides}
            for pipeline in (ours, *theirs.values()):
                pipeline.run(keys)
            for row in rows:
                _run(row, source, ours, theirs, found[row], progress)
                _compare(spark, {OURS: ours.path, **{name: each.path for name, each in theirs.items()}}, row)
                if row == reads_of:
                    reads = time_reads(spark, ours.path, keys, folder / "fresh")
    return found, reads


def _run(
    row: Row, source: Source, ours: Ours, theirs: dict[str, ByHand], found: dict[str, Side], progress: Progress
) -> None:
    task = progress.add_task(str(row), total=row.batches)
    waiting = 0
    for is_measured in row.blocks:
        if is_measured and waiting:
            for pipeline in theirs.values():
                pipeline.run(waiting)
            waiting = 0
        source.write(row.events * BLOCK)
        _timed(ours, row, found[OURS])
        if is_measured:
            for name, pipeline in theirs.items():
                _timed(pipeline, row, found[name])
        else:
            waiting += row.events * BLOCK
        progress.advance(task, BLOCK)
    if waiting:
        for pipeline in theirs.values():
            pipeline.run(waiting)


def _timed(pipeline: Ours | ByHand, row: Row, side: Side) -> None:
    before = _bytes(pipeline.path)
    side.seconds += pipeline.run(row.events)
    # Nothing is removed while this runs, so what there is more of was written.
    side.written += _bytes(pipeline.path) - before


def _bytes(path: str) -> int:
    return sum(entry.stat().st_size for entry in Path(path).rglob("*") if entry.is_file())


def _compare(spark: Any, paths: dict[str, str], row: Row) -> None:
    columns = ["sensor", *(_FOLDS if row.folds else ("sequence", "celsius", "remark", "at"))]
    # Sums of floating-point numbers depend on the order of their terms.
    shown = [f"round({name}, 6) AS {name}" if name in {"mean"} else name for name in columns]
    ours = spark.read.format("delta").load(paths[OURS]).selectExpr(*shown)
    for name, path in paths.items():
        if name == OURS:
            continue
        theirs = spark.read.format("delta").load(path).selectExpr(*shown)
        if ours.exceptAll(theirs).count() or theirs.exceptAll(ours).count():
            raise SystemExit(f"{row}: the tables of {OURS} and {name} differ")
