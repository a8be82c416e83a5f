"""
A topic as Spark reads it: which offsets there are, and the records of a range of them.

The end of a partition is its last stable offset: nothing of an open transaction is read, and a run that waits for one
does not stand still on it.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Self

from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.kafka.admin import UnreachableError, admin_of, await_broker
from fluvial.spark.connect import parallelism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.kafka.recording_admin import RecordingAdmin

_TIMEOUT_S = 30.0
_SHOW_S = 5.0
# Below this a second task costs more to start than it reads.
_RECORDS_PER_TASK = 100_000
# So many partitions are read one after the other in less time than a shuffle takes, which one task does without.
_PARTITIONS_PER_TASK = 4


class TopicError(FluvialError):
    """
    A topic cannot be read, or is not the one that a table was built from.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBounds:
    """
    What a topic holds now: for each partition the first offset that is kept and the last stable one.

    `topic_id` tells a topic from one of the same name made later; brokers before Kafka 2.8 have none.
    """

    topic: str
    topic_id: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """
    The records to read: [start, end) of every partition, but for those at the offsets `skipped`.

    `erased` leaves out keys, by the SHA-256 of their bytes: their records before an offset of each partition.
    """

    topic: str
    ranges: Mapping[int, tuple[int, int]]
    skipped: Mapping[int, Collection[int]] = field(default_factory=dict)
    erased: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def records_max(self) -> int:
        """
        The number of offsets; fewer records where the log was compacted or holds transaction markers.
        """
        return sum(end - start for start, end in self.ranges.values())

    def at_most(self, records: int) -> "Span":
        """
        The first part of the span with about so many offsets, from each partition as its share of the whole is.
        """
        whole = self.records_max
        if whole <= records:
            return self
        taken = {
            partition: (start, min(end, start + -(-(end - start) * records // whole)))
            for partition, (start, end) in self.ranges.items()
        }
        return replace(self, ranges=taken)

    def only(self, partitions: Collection[int]) -> "Span":
        """
        The span of these partitions alone.
        """
        return replace(self, ranges={each: span for each, span in self.ranges.items() if each in partitions})

    def until(self, ends: Mapping[int, int]) -> "Span":
        """
        The part of the span before these offsets; nothing of a partition that they do not name.
        """
        taken = {
            partition: (start, max(start, min(end, ends.get(partition, start))))
            for partition, (start, end) in self.ranges.items()
        }
        return replace(self, ranges=taken)

    def tasks(self, parallelism: int) -> int:
        """
        How many tasks, and so files, the span is worth.
        """
        return max(1, min(parallelism, -(-self.records_max // _RECORDS_PER_TASK)))


def topic_bounds(cluster: KafkaCluster, topic: str) -> TopicBounds:
    """
    Ask the cluster for a topic's bounds. Raises :class:`TopicError` when there is no such topic or no answer.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = _admin_of(cluster)
    try:
        _await_broker(admin, cluster)
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic].result()
        tps = [TopicPartition(topic, partition.id) for partition in described.partitions]
        firsts = admin.list_offsets({tp: OffsetSpec.earliest() for tp in tps}, request_timeout=_TIMEOUT_S)
        lasts = admin.list_offsets(
            {tp: OffsetSpec.latest() for tp in tps},
            request_timeout=_TIMEOUT_S,
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        starts = {tp.partition: future.result().offset for tp, future in firsts.items()}
        ends = {tp.partition: future.result().offset for tp, future in lasts.items()}
    except KafkaException as error:
        raise _explained(error, cluster, topic) from error
    topic_id = str(described.topic_id) if getattr(described, "topic_id", None) is not None else None
    return TopicBounds(topic=topic, topic_id=topic_id, starts=starts, ends=ends)


def show_position(cluster: KafkaCluster, group: str, topic: str, ends: Mapping[int, int]) -> None:
    """
    Commit a position as the offsets of a consumer group without members, so that its lag shows in everyone's tools.

    It is for looking at only: what a table has read stands in the table. Raises :class:`TopicError`.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    admin = _admin_of(cluster)
    offsets = [TopicPartition(topic, partition, end) for partition, end in sorted(ends.items())]
    wanted = ConsumerGroupTopicPartitions(group, offsets)
    try:
        answer = admin.alter_consumer_group_offsets([wanted], request_timeout=_SHOW_S)[group].result()
    except KafkaException as error:
        raise TopicError(f"group {group} on {cluster}: {error.args[0].str()}") from error
    refused = [tp.error for tp in answer.topic_partitions if tp.error is not None]
    if refused:
        raise TopicError(f"group {group} on {cluster}: {refused[0].str()}")


class TopicEnds:
    """
    Asks one cluster again and again where topics end; keeps its connection between.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._admin = _admin_of(cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._admin.poll(0)

    def of(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        """
        The last stable offset of every partition of `topics`, in two requests. Raises :class:`TopicError`.
        """
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if not topics:
            return {}
        topic = ", ".join(sorted(topics))
        try:
            _await_broker(self._admin, self._cluster)
            known = self._admin.list_topics(timeout=_TIMEOUT_S).topics
            for topic in sorted(topics):
                if topic not in known or known[topic].error is not None:
                    raise TopicError(absent(topic, self._cluster))
            tps = [TopicPartition(name, number) for name in topics for number in known[name].partitions]
            found = self._admin.list_offsets(
                {tp: OffsetSpec.latest() for tp in tps},
                request_timeout=_TIMEOUT_S,
                isolation_level=IsolationLevel.READ_COMMITTED,
            )
            ends: dict[str, dict[int, int]] = {}
            for tp, future in found.items():
                ends.setdefault(tp.topic, {})[tp.partition] = future.result().offset
        except KafkaException as error:
            raise _explained(error, self._cluster, topic) from error
        return {name: dict(sorted(each.items())) for name, each in ends.items()}


def _admin_of(cluster: KafkaCluster) -> "RecordingAdmin":
    return admin_of(cluster, **{"client.id": "fluvial-spark"})


def _await_broker(admin: "RecordingAdmin", cluster: KafkaCluster) -> None:
    """
    Return when a broker answers. Raises :class:`TopicError` early when none will have us, late when none answers.
    """
    try:
        await_broker(admin, cluster, timeout_seconds=_TIMEOUT_S)
    except UnreachableError as error:
        raise TopicError(str(error) if error.why is not None else _silent(cluster)) from error


def _silent(cluster: KafkaCluster) -> str:
    return f"no broker answers at {cluster}: start it (`fluvial up`), or fix the address"


def _explained(error: Exception, cluster: KafkaCluster, topic: str) -> TopicError:
    from confluent_kafka import KafkaError

    cause = error.args[0]
    if cause.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
        return TopicError(absent(topic, cluster))
    if cause.code() in {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    }:
        return TopicError(_silent(cluster))
    return TopicError(f"topic {topic} on {cluster} cannot be read: {cause.str()}")


def absent(topic: str, cluster: KafkaCluster, known: Collection[str] = ()) -> str:
    """
    What is said of a topic that is not there: the near name among those `known`, and how to make it.
    """
    near = get_close_matches(topic, known, n=1)
    meant = f"did you mean {near[0]}? Repair" if near else "repair"
    return (
        f"there is no topic {topic} on {cluster}: {meant} the declaration's topic, or create it with "
        f"`fluvial topic create {topic}`"
    )


def read_span(spark: "SparkSession", cluster: KafkaCluster, span: Span) -> "DataFrame":
    """
    The records of a span with Spark's own columns: `key`, `value`, `topic`, `partition`, `offset`, `timestamp`, …

    A record of the span that the log no longer holds fails the job; it is never left out in silence.
    """
    starts = {str(partition): start for partition, (start, _) in sorted(span.ranges.items())}
    ends = {str(partition): end for partition, (_, end) in sorted(span.ranges.items())}
    reader = (
        spark.read.format("kafka")
        .options(**cluster.spark_options())
        .option("kafka.isolation.level", "read_committed")
        # Not the whole topic: it may have partitions that the span leaves alone.
        .option("assign", json.dumps({span.topic: sorted(span.ranges)}))
        .option("startingOffsets", json.dumps({span.topic: starts}))
        .option("endingOffsets", json.dumps({span.topic: ends}))
        .option("failOnDataLoss", "true")
        # Every record of the span is in the log already. A fetch that waits for more holds up, on the same connection,
        # the question about the log's bounds that Spark asks beside each fetch: half a second a partition.
        .option("kafka.fetch.max.wait.ms", "5")
        .option("kafka.fetch.max.bytes", str(64 << 20))
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        # That question, two requests, comes with each answer of `poll`: 500 records by default. An executor keeps the
        # last answer of each partition that it has read, so that many more would fill the memory of a small one.
        .option("kafka.max.poll.records", "5000")
    )
    tasks = span.tasks(parallelism(spark))
    if tasks > len(span.ranges):
        reader = reader.option("minPartitions", str(tasks))
    records = reader.load()
    partitions = sum(start < end for start, end in span.ranges.values())
    for partition, offsets in sorted(span.skipped.items()):
        listed = ", ".join(map(str, sorted(offsets)))
        records = records.where(f"NOT (`partition` = {partition} AND `offset` IN ({listed}))")
    records = _without_erased(spark, records, span)
    return records.coalesce(1) if tasks == 1 and partitions <= _PARTITIONS_PER_TASK else records


def _without_erased(spark: "SparkSession", records: "DataFrame", span: Span) -> "DataFrame":
    """
    The records but for those that are erased; a span that lies behind all erasures costs nothing.
    """
    from pyspark.sql.functions import sha2

    rows = [
        (digest, partition, before)
        for digest, places in span.erased.items()
        for partition, before in places.items()
        if partition in span.ranges and span.ranges[partition][0] < before
    ]
    if not rows:
        return records
    erased = spark.createDataFrame(rows, "_digest STRING, _of INT, _before BIGINT").hint("broadcast")
    covered = (
        (sha2(records["key"], 256) == erased["_digest"])
        & (records["partition"] == erased["_of"])
        & (records["offset"] < erased["_before"])
    )
    return records.join(erased, covered, "left_anti")
