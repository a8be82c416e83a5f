"""
Producers beside a consumer that waits, with librdkafka: `python -m tests.bench.broker.waiting_load JSON`.

Says `ready` once all of them are at work, waits for a line, and answers with a line of JSON. The latencies are
librdkafka's own, from `produce()` to the acknowledgement.
"""

import json
import sys
import threading
import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

PACE_SECONDS = 0.01
SETTLE_SECONDS = 3.0
FETCH_WAIT_MS = 5_000
CONSUME_AT_ONCE = 500


class Load(NamedTuple):
    """Records of `value_bytes`, spread over all partitions in turn; 0 for `fetch_min_bytes` means no consumer."""

    address: str
    topic: str
    partitions: int
    records_a_second: int
    producers: int
    value_bytes: int
    fetch_min_bytes: int
    seconds: float


class Producing:
    """Stock producers that send at a steady pace, from a thread."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._producers = [Producer({"bootstrap.servers": load.address, "log_level": 2}) for _ in range(load.producers)]
        for producer in self._producers:
            producer.list_topics(load.topic, timeout=60)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.latencies: list[float] = []
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and return once everything is acknowledged."""
        self._stopping.set()
        self._thread.join()
        if any(producer.flush(120) for producer in self._producers) or self.failures:
            raise RuntimeError(f"records were not acknowledged: {self.failures[:3]}")

    def _send(self) -> None:
        load, value = self._load, bytes(self._load.value_bytes)
        began = time.perf_counter()
        sent = 0
        while not self._stopping.is_set():
            due = int((time.perf_counter() - began) * load.records_a_second)
            while sent < due:
                producer = self._producers[sent % load.producers]
                producer.produce(load.topic, value, partition=sent % load.partitions, on_delivery=self._delivered)
                sent += 1
            for producer in self._producers:
                producer.poll(0)
            time.sleep(PACE_SECONDS)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.latencies.append(message.latency())


class Consuming:
    """A stock consumer of everything that is new."""

    def __init__(self, load: Load) -> None:
        settings = {
            "bootstrap.servers": load.address,
            "log_level": 2,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "fetch.min.bytes": load.fetch_min_bytes,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(load.topic, at) for at in range(load.partitions)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.got = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._stopping.is_set():
            self.got += len(self._consumer.consume(CONSUME_AT_ONCE, 0.5))


def run(load: Load) -> dict[str, Any]:
    """Take the clock's figures while all goes on, then end it: an answer that comes later counts as well."""
    producing = Producing(load)
    consuming = Consuming(load) if load.fetch_min_bytes else None
    producing.start()
    if consuming is not None:
        consuming.start()
    time.sleep(SETTLE_SECONDS)
    print("ready", flush=True)
    sys.stdin.readline()
    first, began = len(producing.latencies), time.perf_counter()
    time.sleep(load.seconds)
    last, elapsed = len(producing.latencies), time.perf_counter() - began
    producing.stop()
    if consuming is not None:
        consuming.stop()
        if not consuming.got:
            raise RuntimeError("nothing was consumed")
    latencies = sorted(producing.latencies[first:])
    return {
        "messages": last - first,
        "seconds": elapsed,
        "acknowledged": len(producing.latencies),
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(run(Load(**json.loads(sys.argv[1])))), flush=True)
