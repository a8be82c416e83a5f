"""
The tables that one keeps up to date by MERGE: Delta's, which writes files again or marks rows as gone, and Iceberg's.

Each is kept as one who knows its engine would keep it; none knows of the stream that its changes come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.bench.state.events import PARTITIONS
from tests.bench.state.rows import COMMON, ICEBERG, TUNED, VECTORS
from tests.peers.iceberg_jar import require_iceberg_jar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARKING_SIDES = frozenset({VECTORS, ICEBERG})
MERGES_BETWEEN_OPTIMIZE = 50
# What marks rows leaves small files, and each is opened by each merge and each query.
MARKING_MERGES_BETWEEN_UPKEEP = 12
# Upkeep joins smaller files than this, and writes larger ones again when so many of their rows are gone.
_LARGE_FILE_BYTES = 16 << 20
_GONE_MAX = 0.3
# A table of fewer keys is not worth partitions.
_BUCKETED_KEYS_MIN = 1_000_000
# The few rows of a batch are looked up by hash; neither they nor the table's are sorted for that.
_NO_SORT = {"spark.sql.join.preferSortMergeJoin": "false"}
# The rows of a batch are sent to the buckets that the table lies in, and the table's stay where they are.
_JOIN_WHERE_ROWS_LIE = {
    "spark.sql.iceberg.planning.preserve-data-grouping": "true",
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.sources.v2.bucketing.shuffle.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
}

Updates = Mapping[str, str]
"""What columns of a row become whose key is there, in SQL of `t` and `s`; none: the new row takes its place."""


class MergedTable(Protocol):
    """A table that is kept by MERGE."""

    @property
    def path(self) -> str:
        """The folder of all its files."""

    @property
    def conf(self) -> Mapping[str, str]:
        """The settings of the session that keeps it."""

    def merge(self, changes: "DataFrame", updates: Updates) -> None:
        """Take in changes, a row a key; the first ones make the table."""

    def keep_up(self, session: "SparkSession") -> None:
        """Write small files together."""

    def rows(self, session: "SparkSession") -> "DataFrame":
        """The table as it is now."""

    def vectors_written(self, session: "SparkSession") -> int:
        """How many deletion vectors its merges have written."""


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """
    Delta's. Its MERGE writes files again, unless the properties have it write deletion vectors.

    `merge_conf` is set where it merges: Structured Streaming takes some settings away from the sessions of its batches.
    """

    path: str
    conf: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    merge_conf: Mapping[str, str] = field(default_factory=dict)

    def merge(self, changes: "DataFrame", updates: Updates) -> None:
        from delta.tables import DeltaTable

        session = changes.sparkSession
        if not DeltaTable.isDeltaTable(session, self.path):
            changes.write.format("delta").options(**self.properties).save(self.path)
            return
        for name, value in self.merge_conf.items():
            session.conf.set(name, value)
        table = DeltaTable.forPath(session, self.path).alias("t")
        merge: Any = table.merge(changes.alias("s"), "t.sensor = s.sensor")
        merge = merge.whenMatchedUpdate(set=dict(updates)) if updates else merge.whenMatchedUpdateAll()
        merge.whenNotMatchedInsertAll().execute()

    def keep_up(self, session: "SparkSession") -> None:
        session.sql(f"OPTIMIZE delta.`{self.path}`")

    def rows(self, session: "SparkSession") -> "DataFrame":
        return session.read.format("delta").load(self.path)

    def vectors_written(self, session: "SparkSession") -> int:
        added = "coalesce(sum(CAST(operationMetrics.numTargetDeletionVectorsAdded AS BIGINT)), 0)"
        return int(session.sql(f"DESCRIBE HISTORY delta.`{self.path}`").selectExpr(added).collect()[0][0])


_CATALOG = "iceberg"
_NAME = "bench.readings"


class IcebergTable:
    """Iceberg's, of format version 3 and merge-on-read: its MERGE writes deletion vectors. In a catalog of its own."""

    def __init__(self, folder: Path, conf: Mapping[str, str], properties: Mapping[str, str], buckets: int) -> None:
        self.path = str(folder / _NAME.replace(".", "/"))
        catalog = f"spark.sql.catalog.{_CATALOG}"
        self.conf = {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(folder),
            **conf,
        }
        modes = {f"write.{of}.mode": "merge-on-read" for of in ("merge", "update", "delete")}
        self._properties = {"format-version": "3", **modes, **properties}
        self._buckets = buckets
        self._table = f"{_CATALOG}.{_NAME}"

    def merge(self, changes: "DataFrame", updates: Updates) -> None:
        session = changes.sparkSession
        if not session.catalog.tableExists(self._table):
            self._create(changes)
            return
        changes.createOrReplaceTempView("changes")
        assigned = ", ".join(f"t.{column} = {becomes}" for column, becomes in updates.items()) or "*"
        session.sql(
            f"MERGE INTO {self._table} t USING changes s ON t.sensor = s.sensor "
            f"WHEN MATCHED THEN UPDATE SET {assigned} WHEN NOT MATCHED THEN INSERT *"
        )

    def keep_up(self, session: "SparkSession") -> None:
        # Deletion vectors themselves are one a file at most, and need no procedure of theirs.
        options = {"min-file-size-bytes": _LARGE_FILE_BYTES, "delete-ratio-threshold": _GONE_MAX}
        pairs = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        session.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => '{_NAME}', options => map({pairs}))")

    def rows(self, session: "SparkSession") -> "DataFrame":
        session.catalog.refreshTable(self._table)
        return session.table(self._table)

    def vectors_written(self, session: "SparkSession") -> int:
        added = "coalesce(sum(CAST(summary['added-dvs'] AS BIGINT)), 0)"
        return int(session.table(f"{self._table}.snapshots").selectExpr(added).collect()[0][0])

    def _create(self, first: "DataFrame") -> None:
        from pyspark.sql.functions import partitioning

        writer = first.writeTo(self._table).using("iceberg")
        for name, value in self._properties.items():
            writer = writer.tableProperty(name, value)
        if self._buckets:
            writer = writer.partitionedBy(partitioning.bucket(self._buckets, "sensor"))
        writer.create()


class Tuned:
    """A table whose changes are computed once for all the jobs of a MERGE, and whose upkeep comes now and then."""

    def __init__(self, table: MergedTable, merges_between_upkeep: int) -> None:
        self._table = table
        self._between = merges_between_upkeep
        self._merges = 0
        self.path, self.conf = table.path, table.conf
        self.keep_up, self.rows, self.vectors_written = table.keep_up, table.rows, table.vectors_written

    def merge(self, changes: "DataFrame", updates: Updates) -> None:
        changes = changes.persist()
        try:
            self._table.merge(changes, updates)
        finally:
            changes.unpersist()
        self._merges += 1
        if self._merges % self._between == 0:
            self.keep_up(changes.sparkSession)


def iceberg_conf() -> dict[str, str]:
    """What a session that has Iceberg beside Delta is started with; the jar is fetched where it has to be."""
    return {
        "spark.driver.extraClassPath": str(require_iceberg_jar()),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }


def merged_table(side: str, folder: Path, keys: int) -> MergedTable:
    """The table of a hand-written side, in a folder, for so many keys."""
    path, wide = str(folder / "table"), {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    if side == COMMON:
        defaults = {"spark.databricks.delta.snapshotPartitions": "50", "spark.sql.shuffle.partitions": "200"}
        return DeltaTable(path, defaults)
    tuned = {"spark.databricks.delta.snapshotPartitions": "1", **wide}
    if side == TUNED:
        return Tuned(DeltaTable(path, tuned), MERGES_BETWEEN_OPTIMIZE)
    if side == VECTORS:
        upkeep = {
            "spark.databricks.delta.optimize.minFileSize": str(_LARGE_FILE_BYTES),
            "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(_GONE_MAX),
        }
        vectors = DeltaTable(
            path,
            {**tuned, **upkeep, **_NO_SORT},
            properties={"delta.enableDeletionVectors": "true"},
            merge_conf={"spark.sql.adaptive.enabled": "true"},
        )
        return Tuned(vectors, MARKING_MERGES_BETWEEN_UPKEEP)
    if keys < _BUCKETED_KEYS_MIN:
        return Tuned(IcebergTable(folder, {**wide, **_NO_SORT}, {}, 0), MARKING_MERGES_BETWEEN_UPKEEP)
    # Each file is then of one task, which can write its deletion vector without another shuffle.
    table = IcebergTable(
        folder,
        {**wide, **_NO_SORT, **_JOIN_WHERE_ROWS_LIE},
        {"write.merge.distribution-mode": "none", "write.spark.fanout.enabled": "true"},
        PARTITIONS,
    )
    return Tuned(table, MARKING_MERGES_BETWEEN_UPKEEP)
