"""
Records that are in a partition of the log twice: of those with the same id the first one, by its offset, is kept.

A row of the table is of an earlier record of its partition, so that what a batch keeps is decided by its records and
those rows alone, wherever batches are cut.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from fluvial.tables.declare.declarations import History

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData

_MILLISECOND = timedelta(milliseconds=1)


@contextmanager
def without_duplicates(
    rows: "DataFrame", declaration: History, path: str, version: int | None
) -> "Iterator[DataFrame]":
    """
    The rows of a batch that a history at `version`, None for one that is not there, takes; to be written within.

    Those that are duplicates by the declaration are left out.
    """
    if declaration.dedupe is None or version is None:
        yield first_of_each(rows, declaration, None)
        return
    rows = rows.persist()
    try:
        table = rows.sparkSession.read.format("delta").option("versionAsOf", str(version)).load(path)
        yield first_of_each(rows, declaration, table)
    finally:
        rows.unpersist()


def first_of_each(rows: "DataFrame", declaration: History, table: "DataFrame | None") -> "DataFrame":
    """
    The rows of a history without those whose id another row of the partition has at a lower offset.

    `table` holds the rows of other records; None stands for no rows. A null is no id, and is never left out. `rows` are
    read two or three times.
    """
    if declaration.dedupe is None:
        return rows
    if declaration.dedupe_within is not None:
        return _first_within(rows, declaration.dedupe, declaration.dedupe_within // _MILLISECOND, table)
    from pyspark.sql.functions import expr

    column = declaration.dedupe
    ordered = f"PARTITION BY _partition, `{column}` ORDER BY _offset"
    first = (
        rows.selectExpr("*", f"`{column}` IS NULL OR row_number() OVER ({ordered}) = 1 AS _is_first")
        .where("_is_first")
        .drop("_is_first")
    )
    if table is None:
        return first
    earlier = _by_id(_of_ids(table, column, rows), column).agg(expr("min(_offset) AS _first_offset"))
    return first.join(
        earlier.hint("broadcast"),
        expr(f"_partition = _in AND `{column}` = _id AND _first_offset < _offset"),
        "left_anti",
    )


def _by_id(rows: "DataFrame", column: str) -> "GroupedData":
    """The rows in groups of one partition, `_in`, and one id, `_id`."""
    from pyspark.sql.functions import expr

    return rows.groupBy(expr("_partition AS _in"), expr(f"`{column}` AS _id"))


def _of_ids(table: "DataFrame", column: str, rows: "DataFrame") -> "DataFrame":
    """The rows of the table with an id of these rows."""
    from pyspark.sql.functions import expr

    ids = rows.where(f"`{column}` IS NOT NULL").selectExpr("_partition AS _in", f"`{column}` AS _id").distinct()
    # The ids of a batch are brought to the table's rows, and not these to them.
    return table.join(ids.hint("broadcast"), expr(f"_partition = _in AND `{column}` = _id"), "left_semi")


def _first_within(rows: "DataFrame", column: str, within_ms: int, table: "DataFrame | None") -> "DataFrame":
    """
    The rows without those that are at most `within_ms` from one that is kept, of the same id and at a lower offset.

    Whether a row is kept depends on those before it that are: the rows of an id are gone through in their order.
    """
    from pyspark.sql.functions import expr

    at = "collect_list(struct(_offset, unix_millis(_timestamp) AS ms))"
    batch = _by_id(rows.where(f"`{column}` IS NOT NULL"), column).agg(expr(f"array_sort({at}) AS _batch"))
    earlier = "array()"
    if table is not None:
        [(low, high)] = rows.selectExpr("unix_millis(min(_timestamp))", "unix_millis(max(_timestamp))").collect()
        # The bounds are literals, by which Delta passes over the files of other times.
        near = table.where(f"_timestamp >= timestamp_millis({(low or 0) - within_ms})").where(
            f"_timestamp <= timestamp_millis({(high or 0) + within_ms})"
        )
        rows_before = _by_id(_of_ids(near, column, rows), column).agg(expr(f"{at} AS _earlier"))
        batch = batch.join(rows_before.hint("broadcast"), ["_in", "_id"], "left")
        earlier = "coalesce(_earlier, array())"
    kept = (
        f"aggregate(array_sort(concat({earlier}, _batch)), CAST(array() AS array<struct<_offset: bigint, ms: bigint>>),"
        f" (kept, row) -> IF(exists(kept, k -> abs(row.ms - k.ms) <= {within_ms}), kept, array_append(kept, row)))"
    )
    left_out = batch.selectExpr("_in", f"inline(array_except(_batch, {kept}))").drop("ms")
    left_out = left_out.withColumnRenamed("_offset", "_at")
    return rows.join(left_out, expr("_partition = _in AND _offset = _at"), "left_anti")
