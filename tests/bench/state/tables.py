"""
Keyed tables, ours and the hand-written ones, kept up to date from one topic in turn.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.progress import Progress

from fluvial.config import Settings
from fluvial.spark.session import build_session
from fluvial.tables import Declaration, compacted, count, latest, max_, mean, min_, state, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.table_index import TableIndexes
from tests.bench.state.by_hand import ByHand
from tests.bench.state.events import TOPIC, Contract, Source, broker
from tests.bench.state.merges import MARKING_SIDES, iceberg_conf, merged_table
from tests.bench.state.reading import SCANNED, Reads, time_reads, time_scan
from tests.bench.state.rows import BLOCK, ICEBERG, OURS, Row, Side, Work

_FOLDS = {
    "events": count(),
    "total": sum_("humidity"),
    "coldest": min_("celsius"),
    "warmest": max_("celsius"),
    "mean": mean("pascal"),
    "sequence": latest("sequence"),
}
_FOLDS_SCANNED = ("count(*)", "sum(mean)", "max(coldest)", "max(sequence)")

_REDUCED = "events BIGINT, total BIGINT, coldest DOUBLE, warmest DOUBLE, pascals DOUBLE, mean DOUBLE, sequence BIGINT"


def _reduce(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """What `_FOLDS` says, in Python."""
    for event in events:
        if state is None:
            state = {"events": 0, "total": 0, "coldest": event["celsius"], "warmest": event["celsius"], "pascals": 0.0}
        state["events"] += 1
        state["total"] += event["humidity"]
        state["coldest"] = min(state["coldest"], event["celsius"])
        state["warmest"] = max(state["warmest"], event["celsius"])
        state["pascals"] += event["pascal"]
        state["mean"] = state["pascals"] / state["events"]
        state["sequence"] = event["sequence"]
    assert state is not None
    return state


def _declared(work: Work) -> Declaration:
    if work is Work.LATEST:
        return compacted(TOPIC)
    if work is Work.FOLDS:
        return state(TOPIC, topic=TOPIC, key="sensor", fields=_FOLDS)
    return state(TOPIC, topic=TOPIC, key="sensor", reduce=_reduce, returns=_REDUCED)


class Ours:
    """Our table, brought up to date by a process that goes on running."""

    def __init__(self, spark: Any, folder: Path, servers: str, work: Work) -> None:
        self._spark = spark
        self._settings = Settings(warehouse=str(folder), bootstrap_servers=servers)
        self._declaration = _declared(work)
        self._indexes = TableIndexes()
        # As `fluvial run --continuous` has it.
        self._aside = ThreadPoolExecutor(max_workers=1)
        self.path = str(folder / self._declaration.table.replace(".", "/"))

    def rows(self) -> Any:
        return self._spark.read.format("delta").load(self.path)

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
                background=self._aside.submit,
            )
            if result.skipped:
                # What is still under way beside the batches belongs to them.
                self._aside.submit(lambda: None).result()
                if seconds:
                    seconds[-1] += time.monotonic() - began
                return seconds
            seconds.append(time.monotonic() - began)


def session_conf(rows: Iterable[Row]) -> dict[str, str]:
    """What the session of these rows is started with; Iceberg is in it where one of them has it."""
    conf = {"spark.driver.memory": "4g"}
    return {**conf, **iceberg_conf()} if any(ICEBERG in row.sides for row in rows) else conf


def measure(
    rows: list[Row], conf: Mapping[str, str], progress: Progress, reads_of: Row | None
) -> Iterator[tuple[Row, dict[str, Side], Reads | None]]:
    """
    Run rows that go into the same tables, and yield each when it is measured; after `reads_of` with its reads.

    Raises SystemExit when the tables differ, or one has no deletion vectors that should have.
    """
    keys, work, sides = rows[0].keys, rows[0].work, rows[0].sides
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            source = Source(servers, keys)
            source.write_all_keys()
            spark = build_session(Settings(warehouse=str(folder / "ours"), spark_conf=conf))
            ours = Ours(spark, folder / "ours", servers, work)
            theirs = {
                side: ByHand(
                    spark,
                    merged_table(side, folder / str(number), keys),
                    folder / str(number) / "checkpoint",
                    servers,
                    folds=work is not Work.LATEST,
                )
                for number, side in enumerate(sides)
            }
            for pipeline in (ours, *theirs.values()):
                pipeline.run(keys)
            for row in rows:
                found = {name: Side() for name in (OURS, *sides)}
                _run(row, source, ours, theirs, found, progress)
                for side, pipeline in theirs.items():
                    _compare(ours, pipeline, f"{row}: the tables of {OURS} and {side}", work)
                    if side in MARKING_SIDES and not pipeline.table.vectors_written(pipeline.session):
                        raise SystemExit(f"{row}: the merges of {side} have written no deletion vectors")
                yield row, found, time_reads(spark, ours.path, keys, folder / "fresh") if row == reads_of else None


def _run(
    row: Row, source: Source, ours: Ours, theirs: dict[str, ByHand], found: dict[str, Side], progress: Progress
) -> None:
    task = progress.add_task(str(row), total=row.batches)
    scanned = SCANNED if row.work is Work.LATEST else _FOLDS_SCANNED
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
        if is_measured and row.is_scanned:
            for name, each in {OURS: ours, **theirs}.items():
                found[name].scans.append((time_scan(each.rows, scanned), time_scan(each.rows, scanned)))
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


def _compare(ours: Ours, by_hand: ByHand, which: str, work: Work) -> None:
    columns = ("sequence", "celsius", "remark", "at") if work is Work.LATEST else _FOLDS
    # Sums of floating-point numbers depend on the order of their terms.
    same = " AND ".join(
        f"abs(o.{column} - t.{column}) <= 1e-12 * abs(o.{column})" if column == "mean" else f"o.{column} <=> t.{column}"
        for column in columns
    )
    # In the session by hand, as Iceberg's catalog is known there alone.
    our_rows = by_hand.session.read.format("delta").load(ours.path)
    both = our_rows.alias("o").join(by_hand.rows().alias("t"), "sensor", "full_outer")
    differing = both.where(f"NOT coalesce({same}, false)")
    if differing.count():
        differing.show(20, truncate=False)
        raise SystemExit(f"{which} differ")
