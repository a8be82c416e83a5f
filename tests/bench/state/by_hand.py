"""
The pipeline that one writes by hand: Structured Streaming from Kafka, `foreachBatch`, and MERGE into a Delta table.

Once as it is commonly written, and once by someone who has read about tuning: Delta's log read in one task, the batch
cached, shuffles as wide as the machine, small files written together now and then.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.state.events import PARTITIONS, SCHEMA, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MERGES_BETWEEN_OPTIMIZE = 50
_FOLD_UPDATES = {
    "events": "t.events + s.events",
    "total": "t.total + s.total",
    "coldest": "least(t.coldest, s.coldest)",
    "warmest": "greatest(t.warmest, s.warmest)",
    "mean_sum": "t.mean_sum + s.mean_sum",
    "mean_count": "t.mean_count + s.mean_count",
    "mean": "(t.mean_sum + s.mean_sum) / (t.mean_count + s.mean_count)",
    "sequence": "s.sequence",
}


class ByHand:
    """One hand-written stream and its table. `tuned` and `folds` choose which."""

    def __init__(self, spark: "SparkSession", folder: Path, servers: str, *, tuned: bool, folds: bool) -> None:
        self.path = str(folder / "table")
        self._checkpoint = str(folder / "checkpoint")
        self._servers = servers
        self._tuned = tuned
        self._folds = folds
        self._merges = 0
        self._spark = spark.newSession()
        conf = self._spark.conf
        conf.set("spark.databricks.delta.snapshotPartitions", "1" if tuned else "50")
        conf.set("spark.sql.shuffle.partitions", str(PARTITIONS) if tuned else "200")

    def run(self, events_a_batch: int) -> list[float]:
        """Work off what is in the topic in batches of so many events; the seconds of each batch."""
        from tests.bench.state.events import Contract

        records = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(events_a_batch))
            .load()
        )
        query = (
            _decoded(records, Contract.schema)
            .writeStream.foreachBatch(self._merge)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        return [each["durationMs"]["triggerExecution"] / 1000 for each in progress]

    def _merge(self, batch: "DataFrame", _batch_id: int) -> None:
        from delta.tables import DeltaTable

        changes = _folded(batch) if self._folds else _latest(batch)
        session = batch.sparkSession
        if self._tuned:
            changes = changes.persist()
        try:
            if not DeltaTable.isDeltaTable(session, self.path):
                changes.write.format("delta").save(self.path)
                return
            merge: Any = (
                DeltaTable.forPath(session, self.path).alias("t").merge(changes.alias("s"), "t.sensor = s.sensor")
            )
            merge = merge.whenMatchedUpdate(set=_FOLD_UPDATES) if self._folds else merge.whenMatchedUpdateAll()
            merge.whenNotMatchedInsertAll().execute()
        finally:
            if self._tuned:
                changes.unpersist()
        self._merges += 1
        if self._tuned and self._merges % MERGES_BETWEEN_OPTIMIZE == 0:
            session.sql(f"OPTIMIZE delta.`{self.path}`")


def _decoded(records: "DataFrame", schema: str) -> "DataFrame":
    from pyspark.sql import functions as sql
    from pyspark.sql.avro.functions import from_avro

    value = from_avro(sql.expr("substring(value, 6)"), schema)
    return records.select(value.alias("value"), "partition", "offset").select("value.*", "partition", "offset")


def _latest(batch: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as sql

    names = [field["name"] for field in SCHEMA["fields"]]  # type: ignore[index]
    newest = sql.max_by(sql.struct(*names), sql.struct("partition", "offset"))
    return batch.groupBy("sensor").agg(newest.alias("newest")).select("newest.*")


def _folded(batch: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as sql

    place = sql.struct("partition", "offset")
    return (
        batch.groupBy("sensor")
        .agg(
            sql.count("*").alias("events"),
            sql.sum("humidity").alias("total"),
            sql.min("celsius").alias("coldest"),
            sql.max("celsius").alias("warmest"),
            sql.sum("pascal").alias("mean_sum"),
            sql.count("pascal").alias("mean_count"),
            sql.max_by("sequence", place).alias("sequence"),
        )
        .withColumn("mean", sql.expr("mean_sum / mean_count"))
    )
