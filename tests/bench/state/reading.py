"""
What reading a keyed table costs while small batches are added to it, beside the same rows in a table that was just
written and optimized.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fluvial.delta.upkeep import compact_files
from fluvial.spark.connect import session_of_its_own

ROUNDS = 9
SCANNED = ("count(*)", "sum(celsius)", "max(at)", "max(remark)")


@dataclass(frozen=True, slots=True)
class Reads:
    """Seconds of a full scan and of a look-up of one key, medians: as the table lies, after upkeep, and fresh."""

    files: int
    scan: tuple[float, float, float]
    lookup: tuple[float, float, float]


def time_reads(spark: Any, path: str, keys: int, fresh: Path) -> Reads:
    """Read the table at `path`, bring its upkeep forward, read it again, and a copy at `fresh` beside each."""
    spark.read.format("delta").load(path).write.format("delta").save(str(fresh))
    spark.sql(f"OPTIMIZE delta.`{fresh}`")
    files = len(spark.read.format("delta").load(path).inputFiles())
    before = _times(spark, [path, str(fresh)], keys)
    with session_of_its_own(spark) as session:
        compact_files(session, path, files_max=1)
    after = _times(spark, [path, str(fresh)], keys)
    scans, lookups = zip(before[0], after[0], before[1], strict=True)
    return Reads(files, scans, lookups)


def time_scan(rows: Callable[[], Any], scanned: Sequence[str] = SCANNED) -> float:
    """The seconds of a full scan, and of finding out what there is to scan."""
    began = time.monotonic()
    rows().selectExpr(*scanned).collect()
    return time.monotonic() - began


def _times(spark: Any, paths: list[str], keys: int) -> list[tuple[float, float]]:
    dice = random.Random(5)

    def scan(path: str) -> None:
        spark.sql(f"SELECT {', '.join(SCANNED)} FROM delta.`{path}`").collect()

    def lookup(path: str) -> None:
        key = f"sensor-{dice.randrange(keys):09d}"
        assert spark.sql(f"SELECT * FROM delta.`{path}` WHERE sensor = '{key}'").collect()

    return list(zip(_medians(scan, paths), _medians(lookup, paths), strict=True))


def _medians(work: Callable[[str], None], paths: list[str]) -> list[float]:
    """Interleaved; the first two rounds warm."""
    seconds: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(ROUNDS + 2):
        for path in paths:
            began = time.monotonic()
            work(path)
            seconds[path].append(time.monotonic() - began)
    return [median(seconds[path][2:]) for path in paths]
