"""
An IO manager that keeps what assets return in Delta tables of the warehouse, and hands it to those that ask for it.

For assets of one's own beside those of declarations: a frame of Spark, Arrow or pandas goes in, and each reader gets
the kind that it is annotated with, Spark's unless it says so.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.metadata import column_schema, plain_columns
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.spark.warehouse import DATABASES, Warehouse, is_table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITION_COLUMN = "partition_expr"
"""Metadata of an asset with partitions: the column, or line of SQL, whose value says which partition a row is of."""
PARTITION_BY = "partition_by"
"""Metadata of an asset: the columns by which its files lie in folders."""


class DeltaFrameError(FluvialError):
    """What an asset returned cannot be kept as a table."""


class DeltaIOManager(dg.ConfigurableIOManager):
    """
    Keeps an asset `<database>/<name>` as that table.

    An asset without partitions is written again each time, columns too. Of one with partitions only those of the run
    are put in the place of what stood there, so that a backfill may be run again; columns that are new are added to the
    table, and null elsewhere.
    """

    spark: dg.ResourceDependency[SparkResource]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write a frame in one commit; raises DeltaFrameError for anything else."""
        table = _table(context)
        path = Warehouse.at(self.spark.settings.warehouse).path(table)
        frame = self._frame(table, obj)
        with explain_failures(table, path):
            self._write(context, table, path, frame)

    def _write(self, context: dg.OutputContext, table: str, path: str, frame: "DataFrame") -> None:
        writer = frame.write.format("delta").mode("overwrite")
        folders = (context.definition_metadata or {}).get(PARTITION_BY)
        if folders:
            writer = writer.partitionBy(*([folders] if isinstance(folders, str) else folders))
        where = _partition(context) if context.has_asset_partitions else None
        log = TableLog(self.spark.session, path)
        if where is None or log.newest_version() is None:
            writer.option("overwriteSchema" if where is None else "mergeSchema", "true").save(path)
        else:
            writer.option("replaceWhere", where).option("mergeSchema", "true").save(path)
        self._register(table, path)
        commit = next(log.newest_first())
        context.add_output_metadata(
            {
                "delta_version": commit.version,
                "rows": commit.metric("numOutputRows"),
                "bytes": commit.metric("numOutputBytes"),
                "dagster/column_schema": column_schema(plain_columns(frame.schema)),
            }
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """Read the table, or the partitions of it that the run is about."""
        upstream = context.upstream_output
        assert upstream is not None, "an input of an asset comes from an asset"
        table = _table(upstream)
        path = Warehouse.at(self.spark.settings.warehouse).path(table)
        with explain_failures(table, path):
            frame = self.spark.session.read.format("delta").load(path)
            if context.has_asset_partitions:
                frame = frame.where(_partition(context, upstream.definition_metadata))
            wanted = getattr(context.dagster_type.typing_type, "__module__", "")
            if wanted.startswith("pyarrow"):
                return frame.toArrow()
            return frame.toPandas() if wanted.startswith("pandas") else frame

    def _frame(self, table: str, obj: Any) -> "DataFrame":
        if hasattr(obj, "sparkSession") and hasattr(obj, "write"):
            return obj
        module = type(obj).__module__
        if module.startswith(("pyarrow", "pandas")):
            return self.spark.session.createDataFrame(obj)
        raise DeltaFrameError(
            f"{table}: the asset returned {type(obj).__name__}: return a frame of Spark, Arrow or pandas"
        )

    def _register(self, table: str, path: str) -> None:
        from fluvial.spark.session import register_table

        register_table(self.spark.session, table, path)


def _table(context: dg.OutputContext) -> str:
    path = context.asset_key.path
    if len(path) != 2 or path[0] not in DATABASES or not is_table_name(path[1]):
        raise DeltaFrameError(
            f"asset {'/'.join(path)} is no table: give it the key <database>/<name>, with a database of "
            f"{', '.join(DATABASES)}"
        )
    return ".".join(path)


def _partition(context: dg.OutputContext | dg.InputContext, metadata: Mapping[str, Any] | None = None) -> str:
    """The condition in SQL for the rows of the partitions of a run."""
    found = metadata if metadata is not None else context.definition_metadata
    column = (found or {}).get(PARTITION_COLUMN)
    if column is None:
        raise DeltaFrameError(
            f"asset {'/'.join(context.asset_key.path)} has partitions: say which column they are of, as in "
            f'metadata={{"{PARTITION_COLUMN}": "placed_at"}}'
        )
    if isinstance(context.asset_partitions_def, dg.TimeWindowPartitionsDefinition):
        window = context.asset_partitions_time_window
        start, end = (moment.isoformat() for moment in (window.start, window.end))
        return f"{column} >= TIMESTAMP '{start}' AND {column} < TIMESTAMP '{end}'"
    keys = ", ".join("'" + key.replace("\\", "\\\\").replace("'", "\\'") + "'" for key in context.asset_partition_keys)
    return f"{column} IN ({keys})"
