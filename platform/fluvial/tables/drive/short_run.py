"""
Whether a run has so little to do that its JVM gains nothing by optimising what it has compiled.

Most of what a run takes that reads some thousand records is the JVM's second compiler, which works beside it for a
benefit that comes later.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.stamp import read_position
from fluvial.errors import FluvialError
from fluvial.spark.kafka import topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Declaration, History, Pipeline, Publication
from fluvial.tables.plan.planning import plan_span

if TYPE_CHECKING:
    from fluvial.config import Settings

RECORDS_MAX = 1_000_000
"""The records that a short run reads; up to some millions the second compiler has not paid for itself."""
BYTES_MAX = 256 * 1024 * 1024
"""The data files of tables that it may read whole."""


def is_short(chosen: Sequence[Declaration], settings: "Settings") -> bool:
    """
    Whether a run of these tables reads few records and small tables, as far as topics and logs tell without Spark.
    False where they do not: of a warehouse elsewhere than on this machine, or where one of them cannot be read.
    """
    folder = Warehouse.at(settings.warehouse).local
    if folder is None:
        return False
    bounds_of = cache(lambda topic: topic_bounds(settings.cluster, topic))
    records, read = 0, set[str]()
    try:
        for each in chosen:
            if isinstance(each, Pipeline | Publication):
                read.update(each.inputs)
                continue
            if not isinstance(each, History):
                read.add(each.table)
            log = TableLog(None, str(_path(folder, each.table)))
            span = plan_span(each.table, read_position(log, each.table), bounds_of(each.topic))
            records += sum(end - start for start, end in span.ranges.values())
        return records <= RECORDS_MAX and _bytes(folder, read) <= BYTES_MAX
    except (FluvialError, FileNotFoundError):  # a file that a VACUUM has removed meanwhile
        return False


def _path(folder: Path, table: str) -> Path:
    return folder.joinpath(*table.split("."))


def _bytes(folder: Path, tables: Iterable[str]) -> int:
    return sum(file.stat().st_size for table in tables for file in _path(folder, table).rglob("*.parquet"))
