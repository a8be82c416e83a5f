"""
Times of a topic as ranges of its offsets.

A moment cuts each partition before the first record whose timestamp is not earlier; where there is no such record yet,
at the end. So windows that follow each other cut the log into ranges that follow each other: every record lies in one
window, also one that came late, and a cut behind which a record stands stays where it is.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fluvial.kafka import KafkaCluster
from fluvial.kafka.admin import admin_of
from fluvial.spark.kafka import TopicBounds, TopicError, topic_bounds

_TIMEOUT_S = 30.0
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    A stretch of time, [start, end) in milliseconds of Unix time.
    """

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCuts:
    """
    A topic cut at moments: `at[i]` holds, for each partition, the first offset that is not before the i-th moment.

    All offsets lie within `bounds`.
    """

    bounds: TopicBounds
    at: Sequence[Mapping[int, int]]

    def between(self, first: int, second: int) -> dict[int, Range]:
        """
        The range of each partition from one moment to a later one.
        """
        start, end = self.at[first], self.at[second]
        return {partition: (start[partition], max(start[partition], end[partition])) for partition in sorted(start)}


def cut_topic(cluster: KafkaCluster, topic: str, moments_ms: Sequence[int]) -> TopicCuts:
    """
    Cut a topic at moments, in milliseconds of Unix time; one request a moment and broker.

    Raises :class:`~fluvial.spark.kafka.TopicError` when there is no such topic or no answer.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    bounds = topic_bounds(cluster, topic)
    admin = admin_of(cluster, **{"client.id": "fluvial-spark"})
    tps = [TopicPartition(topic, partition) for partition in bounds.ends]

    committed = {"isolation_level": IsolationLevel.READ_COMMITTED}
    with _explained(cluster, topic):
        cuts = [_offsets(admin, tps, OffsetSpec.for_timestamp(moment), **committed) for moment in moments_ms]
    return TopicCuts(bounds=bounds, at=[_within(bounds, cut) for cut in cuts])


def newest_timestamp(cluster: KafkaCluster, topic: str) -> int | None:
    """
    The highest timestamp of any record, in milliseconds; None where the topic is empty. Raises as :func:`cut_topic`.
    """
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    bounds = topic_bounds(cluster, topic)
    admin = admin_of(cluster, **{"client.id": "fluvial-spark"})
    tps = [TopicPartition(topic, partition) for partition, end in bounds.ends.items() if end > 0]
    if not tps:
        return None
    with _explained(cluster, topic):
        found = admin.list_offsets(dict.fromkeys(tps, OffsetSpec.max_timestamp()), request_timeout=_TIMEOUT_S)
        newest = max(future.result().timestamp for future in found.values())
    return None if newest < 0 else newest


def written_before(cluster: KafkaCluster, topic: str, partitions: Collection[int], moment_ms: int) -> dict[int, int]:
    """
    Where what was written before a moment ends in each partition, committed or not. Raises as :func:`cut_topic`.
    """
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = admin_of(cluster, **{"client.id": "fluvial-spark"})
    tps = [TopicPartition(topic, partition) for partition in partitions]
    with _explained(cluster, topic):
        found = _offsets(admin, tps, OffsetSpec.for_timestamp(max(moment_ms, 0)))
        # Where nothing is that new, all that there is was written before.
        rest = [tp for tp in tps if found[tp.partition] < 0]
        return {**found, **(_offsets(admin, rest, OffsetSpec.latest()) if rest else {})}


def _offsets(admin: Any, tps: Sequence[Any], spec: Any, **how: Any) -> dict[int, int]:
    found = admin.list_offsets(dict.fromkeys(tps, spec), request_timeout=_TIMEOUT_S, **how)
    return {tp.partition: future.result().offset for tp, future in found.items()}


@contextmanager
def _explained(cluster: KafkaCluster, topic: str) -> Iterator[None]:
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise TopicError(f"topic {topic} on {cluster} cannot be asked for times: {error.args[0].str()}") from error


def _within(bounds: TopicBounds, cut: Mapping[int, int]) -> dict[int, int]:
    within = {}
    for partition, end in bounds.ends.items():
        offset = cut.get(partition, -1)
        # No record is that late: the cut is the end, and moves with it.
        within[partition] = end if offset < 0 else max(bounds.starts.get(partition, 0), min(offset, end))
    return within
