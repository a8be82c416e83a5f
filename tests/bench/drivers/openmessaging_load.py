"""
Producers, and consumers in a process of their own: `python -m tests.bench.drivers.openmessaging_load JSON`.

Says `ready` once records flow from end to end, waits for a line, and answers with a line of JSON. Publish latency is
librdkafka's own, from `produce()` to the acknowledgement; end to end is from `produce()` until the consumer has it.
Of many messages a few are timed: they carry the time, all others zeros.
"""

import json
import sys
import threading
import time
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer

from tests.bench.drivers.openmessaging_consumers import STAMP, Consumers

TIMED_A_SECOND = 2_000
PACE_SECONDS = 0.001
POLL_SECONDS = 1.0
SETTLE_SECONDS = 1.0
FLUSH_SECONDS_MAX = 120.0
BUFFER_KBYTES = 32_768  # buffer.memory of the Java client
# What driver-kafka/kafka-latency.yaml sets; idempotence and in-flight requests are the Java client's defaults.
PRODUCER = {
    "acks": "all",
    "linger.ms": 1,
    "batch.size": 131_072,
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 5,
    "queue.buffering.max.kbytes": BUFFER_KBYTES,
    "queue.buffering.max.messages": 1_000_000,
    "log_level": 2,
}


class Load(NamedTuple):
    """A shape on a topic; `rate` 0 means as many messages as go."""

    address: str
    topic: str
    name: str
    partitions: int
    message_bytes: int
    producers: int
    consumers: int
    rate: int
    seconds: float


class Producers:
    """Producers that take turns, message by message; `every` is the distance of those that are timed."""

    def __init__(self, load: Load, every: int) -> None:
        settings = {"bootstrap.servers": load.address, **PRODUCER}
        self._producers = [Producer(settings) for _ in range(load.producers)]
        for producer in self._producers:
            producer.list_topics(load.topic, timeout=30)
        self._load = load
        self._every = every
        self._filling = bytes(load.message_bytes - STAMP.size)
        self.sent = 0
        self.latencies: list[float] = []
        self.failures: list[str] = []
        for producer in self._producers:
            threading.Thread(target=self._serve, args=(producer,), daemon=True).start()

    def send_for(self, seconds: float) -> None:
        """Send, and return once all of it is acknowledged."""
        (self._steadily if self._load.rate else self._without_pause)(time.perf_counter() + seconds)
        if any(producer.flush(FLUSH_SECONDS_MAX) for producer in self._producers) or self.failures:
            raise RuntimeError(f"messages were not acknowledged: {self.failures[:3]}")

    def _steadily(self, until: float) -> None:
        """Send what is due; what is late is sent at once, as OpenMessaging's rate limiter has it."""
        first, began = self.sent, time.perf_counter()
        while (now := time.perf_counter()) < until:
            while self.sent - first < (now - began) * self._load.rate:
                self._send()
            time.sleep(PACE_SECONDS)

    def _without_pause(self, until: float) -> None:
        while time.perf_counter() < until:
            for _ in range(100):
                self._send()

    def _send(self) -> None:
        producer = self._producers[self.sent % len(self._producers)]
        is_timed = self.sent % self._every == 0
        stamp = STAMP.pack(time.perf_counter_ns() if is_timed else 0)
        told = {"on_delivery": self._delivered} if is_timed else {}
        while True:
            try:
                producer.produce(self._load.topic, stamp + self._filling, **told)
                break
            except BufferError:
                time.sleep(PACE_SECONDS)
        self.sent += 1

    def _serve(self, producer: Producer) -> None:
        """Hear of acknowledgements as they come: librdkafka takes the time when it tells of them."""
        while True:
            producer.poll(POLL_SECONDS)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.latencies.append(message.latency())


def run(load: Load) -> dict[str, Any]:
    """Begin when records flow; end when all are acknowledged and read."""
    every = max(load.rate // TIMED_A_SECOND, 1) if load.rate else 50
    with Consumers(load.address, load.topic, load.partitions, load.consumers) as consumers:
        producers = Producers(load, every)
        producers.send_for(SETTLE_SECONDS)
        consumers.await_read(producers.sent)
        first = producers.sent
        producers.latencies.clear()
        print("ready", flush=True)
        sys.stdin.readline()
        began, began_ns = time.perf_counter(), time.perf_counter_ns()
        producers.send_for(load.seconds)
        seconds = time.perf_counter() - began
        consumers.await_read(producers.sent)
        read = sorted(consumers.latencies_ms(began_ns))
    published = sorted(latency * 1000 for latency in producers.latencies)
    return {
        "messages": producers.sent - first,
        "seconds": seconds,
        "acknowledged": producers.sent,
        "p50_ms": published[len(published) // 2],
        "p99_ms": published[len(published) * 99 // 100],
        "end_to_end_p50_ms": read[len(read) // 2],
        "end_to_end_p99_ms": read[len(read) * 99 // 100],
    }


if __name__ == "__main__":
    print(json.dumps(run(Load(**json.loads(sys.argv[1])))), flush=True)
