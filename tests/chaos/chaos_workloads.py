"""
What stock clients do to a cluster while it suffers, every operation into the history.

Each workload is a thread. `problems` holds what no checker of histories can see: a commit that was forgotten, an offset
that was refused to a reader.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from chaos_history import Doing, History, Record
from confluent_kafka import (
    OFFSET_BEGINNING,
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
            self.problems.append(f"{self.process} did not come to an end")

    @abstractmethod
    def run(self) -> None:
        """Go on until `self._stopping` is set."""

    def config(self, **more: Any) -> dict[str, Any]:
        """The client's settings, by Kafka's names with underscores for dots in `more`."""
        told = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.servers, "client.id": self.process.replace(" ", "-"), **PATIENT, **told}

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
        producer = Producer(self.config(linger_ms=5, message_timeout_ms=60_000, **self._config))
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


class Copying(Workload):
    """
    Reads a topic as a member of a group and writes what it reads to another, offsets and records in one transaction.

    A copy's value names the attempt and the original: "copier 1.17>idempotent:5". Every fifth attempt is aborted.
    """

    def __init__(
        self, servers: str, history: History, source: str, target: str, partitions: int, *, name: str, seed: int
    ) -> None:
        super().__init__(servers, history, name)
        self.source = source
        self.target = target
        self.partitions = partitions
        self._rng = Random(seed)
        self._moved: list[str] = []
        self._attempts = count()

    def run(self) -> None:
        while not self._stopping.is_set():
            consumer = Consumer(
                self.config(
                    group_id=f"copiers of {self.source}",
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                    session_timeout_ms=6000,
                    isolation_level="read_committed",
                    fetch_wait_max_ms=100,
                )
            )
            producer = Producer(
                self.config(transactional_id=self.process.replace(" ", "-"), linger_ms=5, transaction_timeout_ms=20_000)
            )
            consumer.subscribe([self.source], on_assign=self._rebalanced, on_revoke=self._rebalanced)
            try:
                producer.init_transactions(30)
                while not self._stopping.is_set():
                    self._one(consumer, producer)
            except KafkaException:
                # Fenced, or in doubt for too long: begin anew under the same id, which ends what was left open.
                self._stopping.wait(0.2)
            finally:
                with suppress(KafkaException):
                    consumer.close()

    def _rebalanced(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._moved += [key_of(place) for place in places]

    def _one(self, consumer: Consumer, producer: Producer) -> None:
        attempt = next(self._attempts)
        doing = self.history.begin(self.process, transaction=True)
        try:
            messages = [message for message in consumer.consume(40, 0.4) if message.error() is None]
            doing.moved, self._moved = self._moved, []
            if not messages:
                doing.outcome = "ok"
                return
            doing.polls += map(record_of, messages)
            producer.begin_transaction()
            for message in messages:
                self._copy(producer, doing, attempt, message)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
            )
            if self._rng.random() < 0.2:
                self._abort(consumer, producer, doing)
            else:
                doing.commit_began = time.monotonic()
                self._commit(producer)
                doing.outcome = "ok"
                self.done += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            # What is to be aborted has not been committed, whatever became of the request to do so.
            self._abort(consumer, producer, doing)
        finally:
            self.history.end(doing, doing.outcome)

    def _copy(self, producer: Producer, doing: Doing, attempt: int, message: Message) -> None:
        value = f"{self.process}.{attempt}>{record_of(message).value}"
        partition = self._rng.randrange(self.partitions)
        key = f"{self.target}-{partition}"
        at = len(doing.sends)
        doing.sends.append(Record(key=key, offset=None, value=value))

        def delivered(error: KafkaError | None, acked: Message) -> None:
            offset = acked.offset()
            if error is None and offset is not None and offset >= 0:
                doing.sends[at] = Record(key=key, offset=offset, value=value)

        producer.produce(self.target, value, partition=partition, on_delivery=delivered)

    def _commit(self, producer: Producer) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                producer.commit_transaction(20)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _abort(self, consumer: Consumer, producer: Producer, doing: Doing) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                producer.abort_transaction(20)
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
        doing.outcome = "fail"
        assigned = consumer.assignment()
        for place in consumer.committed(assigned, timeout=20) if assigned else ():
            begin = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            consumer.seek(TopicPartition(place.topic, place.partition, begin))
            self._moved.append(key_of(place))


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
