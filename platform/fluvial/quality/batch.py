"""
The rows that one run added to a table.

A run's Delta commit is stamped with the offset ranges it read, so the table itself says what its last batch is: no
orchestrator has to remember it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.rows import read_rows
from fluvial.delta.stamp import Stamp, offsets_predicate
from fluvial.delta.table_here import plain_columns, table_here
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A table of so many rows, and bytes, is read here sooner than Spark lists its files.
HERE_ROWS_MAX = 50_000
HERE_BYTES_MAX = 16 << 20

OffsetRange = tuple[int, int]
"""First offset of the range and the first one after it, as in [start, end)."""


class NoBatchError(FluvialError):
    """There is nothing to check: no table, or none of its commits is one of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one version of the table at `path`: those inside `offsets`, or all of them."""

    path: str
    version: int
    commit: str | None
    """What Delta calls the commit: a table that was made again has the same versions again, with other rows."""
    offsets: Mapping[int, OffsetRange] | None

    def __str__(self) -> str:
        if self.offsets is None:
            return f"version {self.version}, every row"
        spans = [f"{partition}: [{start}, {end})" for partition, (start, end) in sorted(self.offsets.items())]
        return f"version {self.version}, offsets {', '.join(spans)}"


def last_batch(log: TableLog) -> Batch:
    """
    Find what the newest run wrote, under the commits of upkeep that may stand above it.

    Raises NoBatchError when no run is found.
    """
    for commit in log.newest_first():
        stamp = Stamp.of(commit)
        if stamp is not None:
            return Batch(path=log.path, version=commit.version, commit=commit.txn_id, offsets=stamp.read)
    raise NoBatchError(f"{log.path}: no run has written here: materialise the table first")


def whole_table(log: TableLog) -> Batch:
    """Return every row of the newest version; raises NoBatchError when there is no table."""
    newest = next(log.newest_first(), None)
    if newest is None:
        raise NoBatchError(f"{log.path}: there is no table here: materialize it first")
    return Batch(path=log.path, version=newest.version, commit=newest.txn_id, offsets=None)


def rows_of(spark: "SparkSession", batch: Batch) -> "DataFrame":
    """
    Return the rows of a batch.

    The version is pinned, so that a check and the run it belongs to stay together when another run commits in between.
    """
    rows = spark.read.format("delta").option("versionAsOf", batch.version).load(batch.path)
    return rows if batch.offsets is None else rows.where(offsets_predicate(batch.offsets))


def rows_here(
    spark: "SparkSession", batch: Batch, choose: Callable[[Sequence[str]], Sequence[str]]
) -> "tuple[DataFrame, int] | None":
    """
    Return the rows of a batch of the columns that `choose` takes, read in this process, and their number.

    None where it is not the whole of a small table on this machine, or its values are for Spark to read.
    """
    snapshot = table_here(batch.path, batch.version) if batch.offsets is None else None
    if snapshot is None or (snapshot.rows or 0) > HERE_ROWS_MAX or snapshot.bytes > HERE_BYTES_MAX:
        return None
    found = plain_columns(snapshot, choose([each.name for each in snapshot.columns]))
    if found is None:
        return None
    schema, in_arrow = found
    rows = read_rows(batch.path, snapshot, snapshot.added, in_arrow.names).cast(in_arrow)
    return spark.createDataFrame(rows, schema), rows.num_rows
