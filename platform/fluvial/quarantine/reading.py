"""Reading quarantines: which there are, and what is in them that has not been replayed."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fluvial.config import Settings
from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError
from fluvial.quarantine.records import Quarantined, quarantine_of, quarantined

if TYPE_CHECKING:
    from confluent_kafka import Consumer

BATCH_MAX = 500
POLL_SECONDS = 0.2


def replay_group(topic: str) -> str:
    """The consumer group whose offsets say how far a quarantine has been replayed; the transactional id as well."""
    return f"fluvial-replay-{topic}"


def reader_of(settings: Settings, topic: str) -> "Consumer":
    """Return a consumer of committed records that knows how far the quarantine of `topic` has been replayed."""
    from confluent_kafka import Consumer

    return Consumer(
        settings.cluster.client(
            **{
                "group.id": replay_group(topic),
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            },
        )
    )


def replayed_to(consumer: "Consumer", quarantine: str, partitions: int) -> dict[int, int]:
    """Return, for each partition, the offset up to which its records have been replayed; raises KafkaException."""
    from confluent_kafka import TopicPartition

    found = consumer.committed(
        [TopicPartition(quarantine, each) for each in range(partitions)], timeout=TIMEOUT_SECONDS
    )
    return {each.partition: max(each.offset, 0) for each in found}


def records_from(consumer: "Consumer", quarantine: str, starts: Mapping[int, int]) -> Iterator[Quarantined]:
    """
    Yield the records from these offsets on up to what is the end now, each partition's in order.

    Raises ClusterError or KafkaException.
    """
    from confluent_kafka import KafkaError, TopicPartition

    waiting: dict[int, int] = {}
    for partition, start in starts.items():
        low, high = consumer.get_watermark_offsets(TopicPartition(quarantine, partition), timeout=TIMEOUT_SECONDS)
        if max(low, start) < high:
            waiting[partition] = high
    if not waiting:
        return
    consumer.assign([TopicPartition(quarantine, partition, starts[partition]) for partition in waiting])
    heard = time.monotonic()
    while waiting:
        for message in consumer.consume(BATCH_MAX, POLL_SECONDS):
            heard = time.monotonic()
            error, partition = message.error(), message.partition()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.retriable():
                    continue
                raise ClusterError(f"cannot read partition {partition} of {quarantine}: {error.str()}")
            if error is not None:
                # Markers of transactions are no records: the end is also where the client says so.
                waiting.pop(partition, None)
            elif partition in waiting and message.offset() < waiting[partition]:
                yield quarantined(message)
        if time.monotonic() - heard > TIMEOUT_SECONDS:
            raise ClusterError(f"cannot read {quarantine}: a partition has no leader that answers; try again")


def waiting(settings: Settings, topic: str, partitions: int) -> list[Quarantined]:
    """Return what waits in the quarantine of a topic to be replayed, each partition's in order, all of it at once."""
    from fluvial.kafka.admin import admin_of, describe_cluster

    quarantine = quarantine_of(topic)
    if quarantine not in describe_cluster(settings, admin_of(settings.cluster)).topics:
        return []
    consumer = reader_of(settings, topic)
    try:
        return list(records_from(consumer, quarantine, replayed_to(consumer, quarantine, partitions)))
    finally:
        consumer.close()
