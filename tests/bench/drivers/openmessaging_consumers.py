"""The consumers of a subscription, a thread each, in a process of their own: producers take no time from them."""

import multiprocessing
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, Message

STAMP = struct.Struct(">q")  # nanoseconds of the clock that all processes share, 0 where a message is not timed
READ_AT_ONCE = 500  # max.poll.records of the Java client
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 120.0
# What driver-kafka/kafka-latency.yaml sets; and librdkafka does not sleep when its queue is full.
CONSUMER = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "max.partition.fetch.bytes": 10_485_760,
    "fetch.queue.backoff.ms": 0,
    "log_level": 2,
}


class Consumers:
    """The process of the consumers, as its parent sees it."""

    def __init__(self, address: str, topic: str, partitions: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._partitions = partitions
        self._process = context.Process(target=_serve, args=(address, topic, partitions, count, theirs), daemon=True)

    def __enter__(self) -> "Consumers":
        self._process.start()
        if self._told() < self._partitions:
            raise RuntimeError("the consumers were not assigned all partitions")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def await_read(self, count: int) -> None:
        """Return once so many messages have been read since the beginning."""
        self._pipe.send(count)
        if self._told() < count:
            raise RuntimeError(f"fewer than {count} messages were read")

    def latencies_ms(self, since_ns: int) -> list[float]:
        """The latencies of timed messages that were sent since then."""
        self._pipe.send(-1)
        found: list[tuple[int, int]] = self._pipe.recv()
        return [(read_ns - sent_ns) / 1e6 for sent_ns, read_ns in found if sent_ns >= since_ns]

    def _told(self) -> int:
        if not self._pipe.poll(PATIENCE_SECONDS + 10):
            raise RuntimeError("the consumers say nothing")
        return int(self._pipe.recv())


class _Reader:
    """One consumer of the group; it commits what it has read after each poll, and waits for no answer."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": topic, **CONSUMER})
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self.assigned = 0
        self.read = 0
        self.times: list[tuple[int, int]] = []

    def run(self) -> None:
        while True:
            first = self._consumer.poll(POLL_SECONDS)
            if first is not None:
                self._take([first, *self._consumer.consume(READ_AT_ONCE - 1, 0)])

    def _take(self, messages: list[Message]) -> None:
        now = time.perf_counter_ns()
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            (sent,) = STAMP.unpack_from(message.value())
            if sent:
                self.times.append((sent, now))
        self.read += len(messages)
        self._consumer.commit(asynchronous=True)

    def _assigned(self, _: Consumer, partitions: list[object]) -> None:
        self.assigned = len(partitions)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)


def _serve(address: str, topic: str, partitions: int, count: int, pipe: Connection) -> None:
    readers = [_Reader(address, topic) for _ in range(count)]
    for reader in readers:
        threading.Thread(target=reader.run, daemon=True).start()
    _until(lambda: sum(reader.assigned for reader in readers) >= partitions)
    pipe.send(sum(reader.assigned for reader in readers))
    while True:
        asked = pipe.recv()
        if asked < 0:
            pipe.send([each for reader in readers for each in reader.times])
        else:
            _until(lambda: sum(reader.read for reader in readers) >= asked)  # noqa: B023 it is asked at once
            pipe.send(sum(reader.read for reader in readers))
