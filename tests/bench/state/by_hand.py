"""
The pipeline that one writes by hand: Structured Streaming from Kafka, `foreachBatch`, and MERGE into a table.

Delta's once as it is commonly written, and once by someone who has read about tuning: its log read in one task, the
batch cached, shuffles as wide as the machine, small files written together now and then. That one's again with
deletion vectors, and Iceberg's.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.state.events import PARTITIONS, SCHEMA, TOPIC
from tests.bench.state.merges import MergedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """One hand-written stream into one table, in a session of its own; `folds` chooses what it keeps of a key."""

    def __init__(
        self, spark: "SparkSession", table: MergedTable, checkpoint: Path, servers: str, *, folds: bool
    ) -> None:
        self.table = table
        self.session = spark.newSession()
        for name, value in table.conf.items():
            self.session.conf.set(name, value)
        self._checkpoint = str(checkpoint)
        self._servers = servers
        self._folds = folds

    @property
    def path(self) -> str:
        return self.table.path

    def rows(self) -> "DataFrame":
        return self.table.rows(self.session)

    def run(self, events_a_batch: int) -> list[float]:
        """Work off what is in the topic in batches of so many events; the seconds of each batch."""
        from tests.bench.state.events import Contract

        records = (
            self.session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            # Spark rounds down what is of each partition: a block would end with a batch of an event or two.
            .option("maxOffsetsPerTrigger", str(events_a_batch + PARTITIONS))
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
        if self._folds:
            self.table.merge(_folded(batch), _FOLD_UPDATES)
        else:
            self.table.merge(_latest(batch), {})


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
