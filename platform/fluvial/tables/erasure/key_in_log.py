"""
What a topic holds of one key, and the tombstone that has the broker forget it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fluvial.kafka import KafkaCluster
from fluvial.kafka.admin import ClusterError, admin_of, cluster_errors
from fluvial.spark.kafka import Span, TopicBounds, read_span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """
    The last record of a key in one partition.
    """

    offset: int
    is_tombstone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInLog:
    """
    The records of a key that a topic holds: their number, the last of each partition that has any, when the newest is
    of (milliseconds of Unix time, None where there is none).
    """

    records: int
    last: Mapping[int, LastRecord]
    newest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """
    How long a topic keeps records: whether it is compacted, and for how many milliseconds, None for ever.
    """

    compacted: bool
    retention_ms: int | None


def find_key(spark: "SparkSession", cluster: KafkaCluster, bounds: TopicBounds, key: bytes) -> KeyInLog:
    """
    Read the whole topic for the records of a key.
    """
    from pyspark.sql.functions import col, count, lit, max_by, unix_millis
    from pyspark.sql.functions import max as largest

    ranges = {partition: (bounds.starts[partition], end) for partition, end in bounds.ends.items()}
    span = Span(topic=bounds.topic, ranges={each: of for each, of in ranges.items() if of[0] < of[1]})
    if not span.ranges:
        return KeyInLog(records=0, last={}, newest_ms=None)
    found = (
        read_span(spark, cluster, span)
        .where(col("key") == lit(bytearray(key)))
        .groupBy("partition")
        .agg(
            count("*").alias("records"),
            largest("offset").alias("offset"),
            max_by(col("value").isNull(), "offset").alias("is_tombstone"),
            largest(unix_millis("timestamp")).alias("newest_ms"),
        )
        .collect()
    )
    return KeyInLog(
        records=sum(row["records"] for row in found),
        last={row["partition"]: LastRecord(offset=row["offset"], is_tombstone=row["is_tombstone"]) for row in found},
        newest_ms=max((row["newest_ms"] for row in found), default=None),
    )


def keeping_of(cluster: KafkaCluster, topic: str) -> Keeping:
    """
    Ask the cluster how long a topic keeps records. Raises ClusterError.
    """
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin, resource = admin_of(cluster), ConfigResource(ResourceType.TOPIC, topic)
    with cluster_errors(f"read the settings of topic {topic!r}"):
        found = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource].result(_TIMEOUT_S)
    retention = int(found["retention.ms"].value)
    policy = str(found["cleanup.policy"].value)
    return Keeping(
        compacted="compact" in policy,
        retention_ms=retention if "delete" in policy and retention >= 0 else None,
    )


def append_tombstones(cluster: KafkaCluster, topic: str, key: bytes, partitions: list[int]) -> dict[int, int]:
    """
    Append a record of the key without a value to each of these partitions; their offsets. Raises ClusterError.
    """
    from confluent_kafka import Producer

    offsets: dict[int, int] = {}
    failures: list[str] = []

    def delivered(error: object, message: "object") -> None:
        if error is not None:
            failures.append(str(error))
        else:
            offsets[message.partition()] = message.offset()  # type: ignore[attr-defined]

    with cluster_errors(f"append a tombstone to {topic!r}"):
        producer = Producer(cluster.client(**{"acks": "all", "enable.idempotence": True}))
        for partition in partitions:
            producer.produce(topic, key=key, value=None, partition=partition, on_delivery=delivered)
        left = producer.flush(_TIMEOUT_S)
    if failures or left or len(offsets) != len(partitions):
        raise ClusterError(f"no tombstone could be appended to {topic}: {failures[0] if failures else 'no answer'}")
    return offsets


def shown_time(time_ms: int) -> str:
    """
    A moment for people, in UTC.
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
