"""
Rows that failed a suite, kept in a table of the quarantine until someone has looked at them.

They stay in their own table too, which is what the log says; a blocking suite keeps them from what reads it.
"""

import json
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.quality.batch import Batch, rows_of
from fluvial.quality.engine import LOCATION
from fluvial.quality.outcome import Outcome
from fluvial.quality.suite import Suite
from fluvial.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "_check STRING, _expectation STRING, _version BIGINT, _partition INT, _offset BIGINT, _values STRING"


def kept_table(table: str) -> str:
    """Return the name of the table that keeps the failing rows of `table`."""
    return f"quarantine.failed_{table.replace('.', '_')}"


def keep_failing_rows(
    spark: "SparkSession", warehouse: Warehouse, suite: Suite, batch: Batch, outcome: Outcome
) -> str | None:
    """
    Keep the rows that failed, with the suite, the expectation and the table's version; return where they are kept.

    A row with a place in the log is kept whole, as JSON; another with the values that did not hold. The rows of one
    suite and version are kept once, however often the suite is run on them. None when no row is to be blamed.
    """
    failing = [
        (
            suite.name,
            str(finding),
            batch.version,
            *(row.get(name) for name in LOCATION),
            json.dumps({name: value for name, value in row.items() if name not in LOCATION}, default=str),
        )
        for finding in outcome.failed
        for row in finding.failing
    ]
    if not failing:
        return None
    table = kept_table(suite.table)
    path = warehouse.path(table)
    new = TableLog(spark, path).newest_version() is None
    (
        _whole(spark.createDataFrame(failing, _COLUMNS), spark, batch)
        .coalesce(1)
        .write.format("delta")
        .mode("append")
        # Delta leaves out what it has written under this name and number before.
        .option("txnAppId", f"fluvial/failed/{suite.name}/{batch.commit}/{suite.fingerprint}")
        .option("txnVersion", str(batch.version))
        .save(path)
    )
    if new:
        from fluvial.spark.session import register_table

        register_table(spark, table, path)
    return table


def _whole(failing: "DataFrame", spark: "SparkSession", batch: Batch) -> "DataFrame":
    from pyspark.sql import functions as sf

    rows = rows_of(spark, batch)
    if not set(LOCATION) <= set(rows.columns):
        return failing.withColumn("_row", sf.lit(None).cast("string"))
    whole = rows.select(*LOCATION, sf.to_json(sf.struct("*")).alias("_row"))
    return failing.join(
        sf.broadcast(failing).select(*LOCATION).distinct().join(whole, [*LOCATION]), [*LOCATION], "left"
    )
