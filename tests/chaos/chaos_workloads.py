"""
What stock clients do to a cluster while it suffers, every operation into the history.

Each workload is a thread. `problems` holds what no checker of histories can see: a commit that was forgotten, an offset
that was refused to a reader.
"""

import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any

from chaos_history import Doing, History, Record
from chaos_security import MANNER
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

PATIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    "socket.timeout.ms": 6_000,
    "topic.metadata.refresh.interval.ms": 10_000,
    "log_level": 0,
}
JOIN_SECONDS_MAX = 150.0
# What a producer is told of a record that is certainly not in the log: it was refused before it was appended.
CERTAINLY_NOT = frozenset({KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})


class Workload(ABC):
    """One thread of clients."""

    def __init__(self, servers: str, history: History, process: str) -> None:
        self.servers = servers
        self.history = history
        self.process = process
        self.problems: list[str] = []
        self.done = 0  # operations that went well
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=process, daemon=True)

    @property
    def work(self) -> str:
        """What it does; those who share one work have one name but for a number."""
        return self.process.rstrip(" 0123456789")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end what it does; `join` waits for that."""
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS_MAX)
        if self._thread.is_alive():
            self.problems.append(f"{self.process} did not come to an end; it is in {self.whereabouts()}")

    def whereabouts(self) -> str:
        """The line of this file's that its thread is at."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return " < ".join(f"{at.name}:{at.lineno}" for at in reversed(traceback.extract_stack(frame)))

    @abstractmethod
    def run(self) -> None:
        """Go on until `self._stopping` is set."""

    def config(self, **more: Any) -> dict[str, Any]:
        """The client's settings, by Kafka's names with underscores for dots in `more`."""
        told = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self.servers,
            "client.id": self.process.replace(" ", "-"),
            **PATIENT,
            **MANNER.client,
            **told,
        }

    def _work(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.problems.append(f"{self.process}: {error!r}")


class Producing(Workload):
    """Numbered records, spread over the partitions of a topic, at a steady rate; each is one operation."""

    def __init__(
        self, servers: str, history: History, topic: str, partitions: int, *, rate: float = 100.0, **config: Any
    ) -> None:
        super().__init__(servers, history, f"producer of {topic}")
        self.topic = topic
        self.partitions = partitions
        self._pause = 1 / rate
        self._config = config

    def run(self) -> None:
        # Longer than any outage here. What librdkafka gives up on while it is on its way leaves a gap in the sequence,
        # for which an idempotent producer begins a new epoch and sends the rest of that batch again: if the broker had
        # it, it is there twice.
        producer = Producer(self.config(linger_ms=5, message_timeout_ms=300_000, **self._config))
        for number in count():
            if self._stopping.is_set():
                break
            partition = number % self.partitions
            value = f"{self.topic}:{number}"
            doing = self.history.begin(self.process)
            doing.sends.append(Record(key=f"{self.topic}-{partition}", offset=None, value=value))
            try:
                producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered(doing))
            except BufferError:
                self.history.end(doing, "fail")
            producer.poll(0)
            # Callbacks come at once when the loop is behind.
            self._stopping.wait(self._pause)
        if left := producer.flush(90):
            self.problems.append(f"{self.process}: {left} records were never answered")

    def _delivered(self, doing: Doing) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                known = offset if offset is not None and offset >= 0 else None
                doing.sends = [Record(key=each.key, offset=known, value=each.value) for each in doing.sends]
                self.done += 1
                self.history.end(doing, "ok")
            else:
                self.history.end(doing, "fail" if error.code() in CERTAINLY_NOT else "info")

        return delivered


class Reading(Workload):
    """Follows every partition of some topics by itself, committed records only."""

    def __init__(
        self, servers: str, history: History, topics: dict[str, int], *, name: str = "reader", **config: Any
    ) -> None:
        super().__init__(servers, history, name)
        self.topics = topics
        self._config = config

    def run(self) -> None:
        # An offset that was once polled is never out of range: with "error" the reader would be told.
        consumer = Consumer(
            self.config(
                group_id=self.process.replace(" ", "-"),
                enable_auto_commit=False,
                auto_offset_reset="error",
                fetch_wait_max_ms=100,
                **self._config,
            )
        )
        places = [TopicPartition(topic, at, 0) for topic, n in self.topics.items() for at in range(n)]
        moved = [key_of(place) for place in places]
        consumer.assign(places)
        try:
            while not self._stopping.is_set():
                with self.history.doing(self.process) as doing:
                    doing.moved, moved = moved, []
                    doing.polls += self._good(consumer.consume(500, 0.2))
                    doing.outcome = "ok"
                self.done += bool(doing.polls)
        finally:
            consumer.close()

    def _good(self, messages: Iterable[Message]) -> Iterable[Record]:
        for message in messages:
            error = message.error()
            if error is None:
                yield record_of(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.problems.append(f"{self.process}: {error.str()}")


class Member(Workload):
    """
    A member of a group: polls, then commits what it has polled.

    `commits` is shared by the members: the highest acknowledged commit of each partition, below which none may begin.
    """

    def __init__(
        self, servers: str, history: History, topic: str, *, name: str, commits: dict[str, int], **config: Any
    ) -> None:
        super().__init__(servers, history, name)
        self.topic = topic
        self.commits = commits
        self._config = config
        self._moved: list[str] = []

    def run(self) -> None:
        consumer = Consumer(
            self.config(
                group_id=f"group of {self.topic}",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                isolation_level="read_committed",
                fetch_wait_max_ms=100,
                **self._config,
            )
        )
        consumer.subscribe([self.topic], on_assign=self._assigned, on_revoke=self._revoked)
        try:
            while not self._stopping.is_set():
                with self.history.doing(self.process) as doing:
                    messages = consumer.consume(200, 0.3)
                    doing.polls += [record_of(message) for message in messages if message.error() is None]
                    doing.moved, self._moved = self._moved, []
                    doing.outcome = "ok"
                if doing.polls:
                    self._commit(consumer, doing.polls)
        finally:
            with suppress(KafkaException):
                consumer.close()

    def _commit(self, consumer: Consumer, polls: list[Record]) -> None:
        ends = {record.key: (record.offset or 0) + 1 for record in polls}
        places = [TopicPartition(self.topic, int(key.rpartition("-")[2]), end) for key, end in ends.items()]
        try:
            done = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return  # another has the partition, or nobody knows
        for place in done or ():
            if place.error is None:
                self.done += 1
                self.commits[key_of(place)] = max(self.commits.get(key_of(place), 0), place.offset)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._moved += [key_of(place) for place in places]
        expected = dict(self.commits)
        with suppress(KafkaException):
            for place in consumer.committed(places, timeout=10):
                acked = expected.get(key_of(place), -1)
                if place.error is None and acked >= 0 and place.offset < acked:
                    found = f"{acked} had been committed, the group was told {place.offset}"
                    self.problems.append(f"{self.process}: of {key_of(place)} {found}")

    def _revoked(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._moved += [key_of(place) for place in places]


def read_everything(servers: str, history: History, topics: dict[str, int], *, seconds: float = 90.0) -> list[Record]:
    """
    Read every partition from its first offset to its end, committed records only, as one operation of a process of its
    own; nothing may be under way any more.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "client.id": "observer/end",
            "group.id": "end",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **PATIENT,
            **MANNER.client,
        }
    )
    try:
        with history.doing("end") as doing:
            places = [TopicPartition(topic, at, 0) for topic, n in topics.items() for at in range(n)]
            consumer.assign(places)
            missing = {key_of(place) for place in places}
            deadline = time.monotonic() + seconds
            while missing:
                for message in consumer.consume(2000, 0.3):
                    error = message.error()
                    if error is None:
                        doing.polls.append(record_of(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        missing.discard(f"{message.topic()}-{message.partition()}")
                assert time.monotonic() < deadline, f"{sorted(missing)} cannot be read to the end"
            doing.moved = doing.to_end = [key_of(place) for place in places]
            doing.outcome = "ok"
        return doing.polls
    finally:
        consumer.close()


def key_of(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"


def record_of(message: Message) -> Record:
    value = message.value()
    return Record(
        key=f"{message.topic()}-{message.partition()}",
        offset=message.offset(),
        value=value.decode() if value is not None else "",
    )
