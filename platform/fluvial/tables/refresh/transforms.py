"""
Bringing a pipeline's table up to date: read its inputs at fixed versions, write the answer in one commit.

The commit says which version of each input it was made from, and a fingerprint of the code; a run that would say the
same again is left out. A table with a key is refreshed by :mod:`fluvial.tables.refresh.key_refresh`, one without by
:mod:`fluvial.tables.refresh.row_refresh`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, newest_made
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh.key_refresh import refresh_by_keys
from fluvial.tables.refresh.pipeline_inputs import wanted_stamp
from fluvial.tables.refresh.row_refresh import refresh_by_rows
from fluvial.tables.refresh.stream_run import run_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def materialize_pipeline(
    declaration: Pipeline,
    warehouse: Warehouse,
    spark: "SparkSession",
    say: Callable[[str], None],
    *,
    rebuild: bool = False,
) -> RunResult:
    """
    Write `marts.<name>` again, unless its inputs and its code are those of its newest commit; with `rebuild` always.

    Of a table with a key only the rows of keys that changed, of another one the rows that the changed rows of its
    inputs lead to, where that is possible and cheaper.
    """
    log = TableLog(spark, warehouse.path(declaration.table))
    log.check()
    wanted = wanted_stamp(declaration, warehouse, spark)
    skipped = None if rebuild else _skipped(declaration, log, wanted)
    if skipped is not None:
        return skipped
    versions = {table: each.version for table, each in wanted.inputs.items()}
    say(f"{declaration.table}: from {', '.join(f'{table} version {version}' for table, version in versions.items())}")
    if declaration.output_mode is not None:
        return run_stream(declaration, warehouse, spark, say, rebuild=rebuild)
    refresh = refresh_by_keys if declaration.key else refresh_by_rows
    return refresh(declaration, warehouse, spark, say, rebuild=rebuild)


def skipped_pipeline(declaration: Pipeline, warehouse: Warehouse) -> RunResult | None:
    """
    The result of a run that has nothing to do; None where there is something. The warehouse is on this machine.

    Raises as :func:`materialize_pipeline` does before it reads.
    """
    log = TableLog(None, warehouse.path(declaration.table))
    log.check()
    return _skipped(declaration, log, wanted_stamp(declaration, warehouse, None))


def _skipped(declaration: Pipeline, log: TableLog, wanted: MartStamp) -> RunResult | None:
    made = newest_made(log)
    if made is None or not made.stamp.is_of(wanted):
        return None
    version = log.newest_version()
    return RunResult(
        table=declaration.table,
        kind=declaration.kind,
        skipped=True,
        version_before=version,
        version_after=version,
        inputs={table: each.version for table, each in wanted.inputs.items()},
    )
