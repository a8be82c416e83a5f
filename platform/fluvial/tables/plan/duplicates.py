"""
Records that are in a partition of the log twice: of those with the same id the first one, by its offset, is kept.

A row of the table is of an earlier record of its partition, so that what a batch keeps is decided by its records and
those rows alone, wherever batches are cut.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def without_duplicates(rows: "DataFrame", column: str | None, path: str, version: int | None) -> "Iterator[DataFrame]":
    """
    The rows of a batch that a history at `version`, None for one that is not there, takes; to be written within.

    Those that are duplicates by `column` are left out; None leaves out none.
    """
    if column is None or version is None:
        yield rows if column is None else first_of_each(rows, column, None)
        return
    rows = rows.persist()
    try:
        table = rows.sparkSession.read.format("delta").option("versionAsOf", str(version)).load(path)
        yield first_of_each(rows, column, table)
    finally:
        rows.unpersist()


def first_of_each(rows: "DataFrame", column: str, table: "DataFrame | None") -> "DataFrame":
    """
    The rows of a history without those whose `column` another row of the partition has at a lower offset.

    `table` holds the rows of other records; None stands for no rows. A null is no id, and is never left out. `rows` are
    read twice where there is a table.
    """
    from pyspark.sql.functions import expr

    ordered = f"PARTITION BY _partition, `{column}` ORDER BY _offset"
    first = (
        rows.selectExpr("*", f"`{column}` IS NULL OR row_number() OVER ({ordered}) = 1 AS _is_first")
        .where("_is_first")
        .drop("_is_first")
    )
    if table is None:
        return first
    ids = rows.where(f"`{column}` IS NOT NULL").selectExpr("_partition AS _in", f"`{column}` AS _id").distinct()
    # The ids of a batch are brought to the table's rows, and not these to them.
    earlier = (
        table.join(ids.hint("broadcast"), expr(f"_partition = _in AND `{column}` = _id"), "left_semi")
        .groupBy(expr("_partition AS _in"), expr(f"`{column}` AS _id"))
        .agg(expr("min(_offset) AS _first_offset"))
    )
    return first.join(
        earlier.hint("broadcast"),
        expr(f"_partition = _in AND `{column}` = _id AND _first_offset < _offset"),
        "left_anti",
    )
