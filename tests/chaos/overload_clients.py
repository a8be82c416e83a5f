"""Who is there while a broker is overloaded: a reader of everything, and a client that asks for little."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from overload_load import ID

READ_AT_ONCE = 500
DELETED_AT_ONCE = 10_000  # records of a partition after which what has been read is deleted
WAIT_SECONDS = 240.0


class Counts:
    """How often each record of each process was read, held against what that process wrote down of it."""

    def __init__(self) -> None:
        self._counts: dict[int, bytearray] = defaultdict(bytearray)

    def add(self, number: int, record: int) -> None:
        counts = self._counts[number]
        if record >= len(counts):
            counts.extend(bytes(record + 1 - len(counts)))
        counts[record] = min(counts[record] + 1, 255)

    def findings(self, files: Sequence[Path]) -> list[str]:
        """Once each, and nothing else."""
        return [finding for number, file in enumerate(files) for finding in self._of(number, file.read_bytes())]

    def _of(self, number: int, taken: bytes) -> Iterator[str]:
        counts = self._counts[number].ljust(len(taken), b"\0")
        if lost := sum(acknowledged > count for acknowledged, count in zip(taken, counts, strict=False)):
            yield f"{lost} of {sum(taken):,} acknowledged records of process {number} are lost"
        if doubled := sum(count > 1 for count in counts):
            yield f"{doubled} records of process {number} are there more than once"
        if len(counts) > len(taken):
            yield f"process {number} took {len(taken)} records, and {len(counts)} were read"


class Reader:
    """Counts each record as it is read, and has the broker delete what has been read: ten minutes fill no disk."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": address, "group.id": "overload", "enable.auto.commit": False, "log_level": 2}
        self._settings = settings
        self._consumer = Consumer(settings)
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
        self._topic = topic
        self._next = dict.fromkeys(range(partitions), 0)
        self._deleted = dict.fromkeys(range(partitions), 0)
        self.counts = Counts()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.errors: list[str] = []
        self._consumer.assign([TopicPartition(topic, at, 0) for at in self._next])
        self._thread.start()

    def finish(self) -> None:
        """Read to the end of the topic as it is now."""
        asking = Consumer(self._settings)  # the other one is being read from in its thread
        ends = {at: asking.get_watermark_offsets(TopicPartition(self._topic, at), 60)[1] for at in self._next}
        asking.close()
        deadline = time.monotonic() + WAIT_SECONDS
        while any(self._next[at] < end for at, end in ends.items()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.consume(READ_AT_ONCE, 0.1):
                self._count(message)
            for at, offset in self._next.items():
                if offset - self._deleted[at] >= DELETED_AT_ONCE:
                    self._deleted[at] = offset
                    self._admin.delete_records([TopicPartition(self._topic, at, offset)])

    def _count(self, message: Message) -> None:
        if message.error() is not None:
            self.errors.append(f"the reader was told: {message.error()}")
            return
        self.counts.add(*ID.unpack(message.key()))
        self._next[message.partition()] = message.offset() + 1


class SmallClient:
    """Sends a record and asks for the topics once a second, with librdkafka's own timeouts."""

    def __init__(self, address: str, topic: str) -> None:
        settings = {"bootstrap.servers": address, "log_level": 2, "statistics.interval.ms": 500}
        self._producer = Producer({**settings, "acks": "all", "stats_cb": self._statistics, "on_delivery": self._told})
        self._topic = topic
        self._is_over = threading.Event()
        self._timeouts = 0
        self._sent = 0
        self.latencies_ms: list[float] = []
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> list[str]:
        """Stop; return what it was not given."""
        self._is_over.set()
        self._thread.join()
        self._producer.flush(WAIT_SECONDS)
        self._producer.poll(1.0)
        if self._timeouts:
            self.errors.append(f"{self._timeouts} requests of the small client were not answered in time")
        if len(self.latencies_ms) < self._sent:
            self.errors.append(f"{len(self.latencies_ms)} of {self._sent} records of the small client are acknowledged")
        return self.errors

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._producer.produce(self._topic, b"small")
            self._sent += 1
            try:
                self._producer.list_topics(self._topic, timeout=60)
            except Exception as error:
                self.errors.append(f"the small client was not told the topics: {error}")
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                self._producer.poll(0.1)  # returns at what comes first

    def _statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self._timeouts = max(self._timeouts, sum(each["req_timeouts"] for each in brokers))

    def _told(self, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(f"a record of the small client was refused: {error}")
        else:
            self.latencies_ms.append(message.latency() * 1000)
