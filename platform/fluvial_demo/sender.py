"""An idempotent librdkafka producer that leaves no gap: each partition always holds a prefix of what was handed in."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fluvial.kafka import KafkaCluster
from fluvial_demo.topic_log import PublishError

QUEUED_MESSAGES_MAX = 200_000
POLL_S = 0.05

STALLED_AFTER_S = 60.0
"""How long the cluster may take no record before the sender gives up."""

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())


class Outgoing(NamedTuple):
    """One record on its way; a tuple, because there are hundreds of thousands."""

    value: bytes
    key: bytes | None
    partition: int
    timestamp_ms: int


class Sender:
    """Sends records in order and waits until the cluster has acknowledged them all."""

    def __init__(self, cluster: KafkaCluster, *, stalled_after_s: float = STALLED_AFTER_S) -> None:
        self._stalled_after_s = stalled_after_s
        self._refusal: KafkaError | None = None
        self._last_error: KafkaError | None = None
        self._producer = Producer(
            cluster.client(
                logger=log,
                **{
                    "client.id": "flights-publisher",
                    "enable.idempotence": True,
                    # A batch that cannot be written, or that waits too long, must not be overtaken by the next one.
                    "enable.gapless.guarantee": True,
                    "message.timeout.ms": 0,
                    # Each record names its partition; the partitioner is set for whoever copies this configuration.
                    "partitioner": "murmur2_random",
                    "compression.type": "lz4",
                    "linger.ms": 50,
                    "batch.size": 1_000_000,
                    "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
                    "delivery.report.only.error": True,
                    "on_delivery": self._on_delivery,
                    "error_cb": self._on_error,
                },
            )
        )
        self._acknowledged = 0
        self._moved_at = 0.0

    def close(self) -> None:
        """Drop what is queued; what is on its way may still reach the log."""
        with suppress(KafkaException):
            self._producer.purge()
        self._producer.flush(POLL_S)
        # It and this sender hold each other, by the callbacks: its threads and connections would outlast both.
        del self._producer

    def send(self, topic: str, chunks: Iterable[Sequence[Outgoing]], on_sent: Callable[[int], None]) -> None:
        """
        Send all records and return when they are acknowledged; `on_sent` hears how many are.

        Raises `PublishError` when the cluster refuses a record, or takes none for longer than the sender waits.
        """
        self._acknowledged, self._moved_at = 0, time.monotonic()
        try:
            queued = 0
            for chunk in chunks:
                self._queue(topic, chunk, queued, on_sent)
                queued += len(chunk)
            while self._producer.flush(POLL_S):
                self._look(queued, on_sent)
            self._look(queued, on_sent)
        except KafkaException as error:
            raise self._refused(error.args[0]) from error

    def _queue(self, topic: str, chunk: Sequence[Outgoing], queued: int, on_sent: Callable[[int], None]) -> None:
        produce = self._producer.produce
        for at, (value, key, partition, timestamp) in enumerate(chunk):
            while True:
                try:
                    produce(topic, value, key, partition, timestamp=timestamp)
                    break
                except BufferError:
                    self._producer.poll(POLL_S)
                    self._look(queued + at, on_sent)
        self._producer.poll(0)
        self._look(queued + len(chunk), on_sent)

    def _look(self, queued: int, on_sent: Callable[[int], None]) -> None:
        if self._refusal is not None:
            raise self._refused(self._refusal)
        acknowledged = queued - len(self._producer)
        now = time.monotonic()
        if acknowledged != self._acknowledged or acknowledged == queued:
            self._acknowledged, self._moved_at = acknowledged, now
            on_sent(acknowledged)
        elif now - self._moved_at > self._stalled_after_s:
            why = f" ({self._last_error.str()})" if self._last_error else ""
            raise PublishError(
                f"the cluster has taken no record for {self._stalled_after_s:.0f} s{why}; publish again to go on there"
            )

    def _refused(self, error: KafkaError) -> PublishError:
        return PublishError(f"the cluster refused a record: {(self._refusal or error).str()}")

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        # After a fatal error every queued record fails with it; the first failure is the cause.
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._refusal = self._refusal or error

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error
        if error.fatal():
            self._refusal = self._refusal or error
