"""
The records of a span of a topic, through librdkafka: those of committed transactions alone.
"""

import time
from collections.abc import Iterator
from typing import Any

from fluvial.delta.erasures import digest_of
from fluvial.fresh.decoding import Records
from fluvial.fresh.errors import FreshError
from fluvial.kafka import KafkaCluster
from fluvial.spark.kafka import Span

RECORDS_AT_ONCE = 50_000
BYTES_AT_ONCE = 64 << 20
_AT_ONCE = 10_000
_PATIENCE_S = 30.0


class LostError(FreshError):
    """
    Retention took the beginning of a span before it was read.
    """


def read_tail(cluster: KafkaCluster, span: Span) -> Iterator[Records]:
    """
    Every record of the span in the order of each partition, but for those that are skipped or erased; some at once.

    Raises :class:`LostError`, and :class:`FreshError` where records that are there do not come.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    open_ = {partition: end for partition, (start, end) in span.ranges.items() if start < end}
    if not open_:
        return
    consumer = Consumer(
        cluster.client(
            **{
                "group.id": "fluvial-fresh",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 10,
            }
        )
    )
    try:
        consumer.assign([TopicPartition(span.topic, partition, span.ranges[partition][0]) for partition in open_])
        deadline = time.monotonic() + _PATIENCE_S
        is_whole = not span.erased and not any(span.skipped.values())
        gathered = partitions, offsets, timestamps, keys, values = Records([], [], [], [], [])
        size = counted = 0
        while open_:
            messages = consumer.consume(_AT_ONCE, 0.05)
            if messages:
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise FreshError(
                    f"{span.topic} on {cluster} does not give its records up to {open_}: is a broker down?"
                )
            for message in messages:
                error, partition, offset = message.error(), message.partition(), message.offset()
                end = open_.get(partition, -1)
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    _judge(error, cluster, span)
                    continue
                if error is None and offset < end:
                    key = message.key()
                    if is_whole or _is_read(span, partition, offset, key):
                        partitions.append(partition)
                        offsets.append(offset)
                        timestamps.append(message.timestamp()[1])
                        keys.append(key)
                        values.append(message.value())
                # Behind the last record are markers of transactions at most, or what came later.
                if offset + (error is None) >= end and partition in open_:
                    del open_[partition]
            size += sum(len(value) for value in values[counted:] if value is not None)
            counted = len(values)
            if counted >= RECORDS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield gathered
                size = counted = 0
                gathered = partitions, offsets, timestamps, keys, values = Records([], [], [], [], [])
        if values:
            yield gathered
    finally:
        consumer.close()


def _judge(error: Any, cluster: KafkaCluster, span: Span) -> None:
    """Raise what ends the reading; librdkafka itself tries again what may pass."""
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        raise LostError(f"the log of {span.topic} no longer begins where the table ends: {error.str()}")
    if not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        raise FreshError(f"{span.topic} on {cluster} cannot be read: {error.str()}")


def _is_read(span: Span, partition: int, offset: int, key: bytes | None) -> bool:
    if offset in span.skipped.get(partition, ()):
        return False
    if not span.erased or key is None:
        return True
    places = span.erased.get(digest_of(key))
    return places is None or offset >= places.get(partition, 0)
