"""
Rows that are few enough to be written by this process: a job of Spark's that writes takes longer than they do.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluvial.delta.commit import AnyStamp
from fluvial.delta.jvm import converters, delta_log, none
from fluvial.delta.log import is_here
from fluvial.delta.row_swap import Swapped, swap_arrow_rows
from fluvial.delta.table_here import columns_to_write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.delta.recent import Recent

FEW_ROWS_MAX = 20_000
FEW_BYTES_MAX = 16 << 20


def swap_few(
    session: "SparkSession",
    path: str,
    written: "DataFrame",
    gone: Mapping[str, Any],
    *,
    version: int,
    stamp: AnyStamp,
    by: str,
    vectors: "Recent[BitMap64]",
) -> Swapped | None:
    """
    Do what :func:`~fluvial.delta.row_swap.swap_rows` does with a few rows, in the order of the column `by`; None where
    Spark has to write them: the table is elsewhere, or promises something of its rows that Delta's own writer
    sees to.
    """
    columns = _columns(session, path)
    if columns is None:
        return None
    rows = written.toArrow().select(columns.names).cast(columns).sort_by(by)
    return swap_arrow_rows(session, path, rows, gone, version=version, stamp=stamp, vectors=vectors)


def are_few(rows: int, kept: "DataFrame", *more: int) -> bool:
    """
    Whether so many rows, made from what Spark keeps of a frame and from `more` bytes, are for this process to write.
    """
    if rows > FEW_ROWS_MAX:
        return False
    plan = kept.select("*")._jdf.queryExecution().optimizedPlan()
    return int(str(plan.stats().sizeInBytes())) + sum(more) <= FEW_BYTES_MAX


def _columns(session: "SparkSession", path: str) -> "pa.Schema | None":
    if not is_here(path):
        return None
    metadata = delta_log(session, path).update(False, none(session), none(session)).metadata()
    properties = converters(session).asJava(metadata.configuration())
    return columns_to_write(metadata.schemaString(), dict(properties))
