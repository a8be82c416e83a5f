"""Records produced to the topics of a copy all the time, and which of the acknowledged ones can be read."""

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fluvial.rehearsal.plan import Shape

if TYPE_CHECKING:
    from confluent_kafka import Message

EVERY_SECONDS = 0.05
_WAITING_MAX = 10_000
_DELIVERY_MS = 300_000
_READ_SECONDS = 60.0


class Load:
    """
    A thread that sends a numbered record to each partition of a shape's topic every `EVERY_SECONDS`.

    `sent_at` of a number is `time.monotonic()`; a record that waits for its leader is acknowledged later or never.
    """

    def __init__(self, shape: Shape, bootstrap_servers: str, partitions: int) -> None:
        from confluent_kafka import Producer

        self.shape = shape
        self.acknowledged: set[tuple[int, int]] = set()
        self._partitions = partitions
        self._newest: dict[int, float] = {}
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._servers = bootstrap_servers
        # Not idempotent: a record twice loses nothing, and a partition that is emptied would end such a producer.
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "message.timeout.ms": _DELIVERY_MS,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
                "logger": _silent(),
                **shape.producer,
            }
        )
        self._thread = threading.Thread(target=self._produce, name=shape.name, daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and drop what is not acknowledged."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._producer.purge()
        self._producer.flush(5)

    def is_taken_since(self, moment: float) -> bool:
        """Whether each partition has acknowledged a record that was sent after `moment`."""
        with self._guard:
            return all(self._newest.get(number, 0.0) > moment for number in range(self._partitions))

    def snapshot(self) -> set[tuple[int, int]]:
        """The partition and number of each record that is acknowledged by now."""
        with self._guard:
            return set(self.acknowledged)

    def missing(self, acknowledged: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which of these records cannot be read now."""
        return set(acknowledged) - self._read()

    def _produce(self) -> None:
        number = 0
        while not self._ended.wait(EVERY_SECONDS):
            number += 1
            if len(self._producer) < _WAITING_MAX:
                for partition in range(self._partitions):
                    self._send(partition, number)
            self._producer.poll(0)

    def _send(self, partition: int, number: int) -> None:
        moment = time.monotonic()

        def told(error: Any, message: "Message") -> None:
            # With acks=0 nobody tells: whatever was given away counts.
            if error is None:
                with self._guard:
                    self.acknowledged.add((partition, number))
                    self._newest[partition] = max(moment, self._newest.get(partition, 0.0))

        self._producer.produce(self.shape.name, str(number).encode(), partition=partition, on_delivery=told)

    def _read(self) -> set[tuple[int, int]]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._servers, "group.id": f"{self.shape.name}-reader", "logger": _silent()}
        )
        try:
            places = [TopicPartition(self.shape.name, each, OFFSET_BEGINNING) for each in range(self._partitions)]
            ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
            waiting = {partition for partition, end in ends.items() if end > 0}
            consumer.assign(places)
            found: set[tuple[int, int]] = set()
            deadline = time.monotonic() + _READ_SECONDS
            while waiting and time.monotonic() < deadline:
                for message in consumer.consume(500, timeout=0.5):
                    if message.error() is None:
                        found.add((message.partition(), int(message.value())))
                        if message.offset() + 1 >= ends[message.partition()]:
                            waiting.discard(message.partition())
            return found
        finally:
            consumer.close()


def _silent() -> Any:
    """A logger that says nothing: a broker that is down is what is rehearsed."""
    import logging

    log = logging.getLogger(f"{__name__}.client")
    log.propagate = False
    log.disabled = True
    return log
