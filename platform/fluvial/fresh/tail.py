"""
The records of a span of a topic, through librdkafka: those of committed transactions alone.
"""

import time
from collections.abc import Iterator
from typing import Any

from fluvial.delta.erasures import digest_of
from fluvial.fresh.decoding import Record
from fluvial.fresh.errors import FreshError
from fluvial.kafka import KafkaCluster
from fluvial.spark.kafka import Span

_AT_ONCE = 10_000
_PATIENCE_S = 30.0


class LostError(FreshError):
    """
    Retention took the beginning of a span before it was read.
    """


def read_tail(cluster: KafkaCluster, span: Span) -> Iterator[Record]:
    """
    Every record of the span in the order of each partition, but for those that are skipped or erased.

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
                    record = Record(partition, offset, message.timestamp()[1], message.key(), message.value())
                    if _is_read(span, record):
                        yield record
                # Behind the last record are markers of transactions at most, or what came later.
                if partition in open_ and offset + (error is None) >= end:
                    del open_[partition]
    finally:
        consumer.close()


def _judge(error: Any, cluster: KafkaCluster, span: Span) -> None:
    """Raise what ends the reading; librdkafka itself tries again what may pass."""
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        raise LostError(f"the log of {span.topic} no longer begins where the table ends: {error.str()}")
    if not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        raise FreshError(f"{span.topic} on {cluster} cannot be read: {error.str()}")


def _is_read(span: Span, record: Record) -> bool:
    if record.offset in span.skipped.get(record.partition, ()):
        return False
    if not span.erased or record.key is None:
        return True
    places = span.erased.get(digest_of(record.key))
    return places is None or record.offset >= places.get(record.partition, 0)
