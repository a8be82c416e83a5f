"""
Loads for a broker that is killed again and again. Each is a thread that keeps what was acknowledged to it, goes on
through every restart, and afterwards holds the broker to all of it.
"""

import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

SEGMENT_BYTES = "40000"
PATIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


class Load(ABC):
    """One thread of load. `failures` holds promises that were seen broken while it ran."""

    def __init__(self, servers: str, seed: int) -> None:
        self.servers = servers
        self.rng = random.Random(seed)
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish what is under way; the broker must be up."""
        self._stopping.set()
        self._thread.join(120)
        if self._thread.is_alive():
            self.failures.append(f"{self} did not come to an end")

    def acked(self) -> int:
        return 0

    def check(self) -> list[str]:
        """Return what is wrong, with the broker up and the load going on."""
        return []

    def check_all(self) -> list[str]:
        """Return what is wrong once nothing is under way any more."""
        return []

    @abstractmethod
    def run(self) -> None:
        """Send until told to stop."""

    def _work(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.failures.append(f"{self}: {error!r}")

    def __str__(self) -> str:
        return type(self).__name__


class Producing(Load):
    """Numbered records into one topic; where each acknowledged one lies is kept."""

    def __init__(self, servers: str, seed: int, topic: str, *, config: dict[str, Any], topic_config: dict[str, str]):
        super().__init__(servers, seed)
        self.topic = topic
        self.places: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._ends: dict[int, int] = {}
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 2, **PATIENT, **config})
        self._config = {"segment.bytes": SEGMENT_BYTES, "retention.ms": "-1", **topic_config}

    def acked(self) -> int:
        return len(self.places)

    def run(self) -> None:
        create(self.servers, NewTopic(self.topic, 3, 1, config=self._config))
        number = 0
        while not self._stopping.is_set():
            with suppress(BufferError):
                self._producer.produce(
                    self.topic, self.value(number), self.key(number), on_delivery=self._delivered(number)
                )
                number += 1
            self._producer.poll(0.01 if number % 20 == 0 else 0)
        if self._producer.flush(60):
            self.failures.append(f"{self}: records were never answered")

    def key(self, number: int) -> bytes:
        return b"%d" % (number % 40)

    def value(self, number: int) -> bytes:
        return b"%d " % number + b"x" * (number * 7919 % 200)

    def _delivered(self, number: int) -> Any:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                return  # told so: it may or may not be there
            partition, offset = message.partition(), message.offset()
            with self._lock:
                self.places[number] = (partition, offset)
                self._ends[partition] = max(self._ends.get(partition, 0), offset + 1)

        return delivered

    def check(self) -> list[str]:
        with self._lock:
            ends = dict(self._ends)
        found = latest(self.servers, self.topic, list(ends))
        return [
            f"{self}: {self.topic}-{partition} ends at {found[partition]}, acknowledged up to {end}"
            for partition, end in ends.items()
            if found[partition] < end
        ]

    def check_all(self) -> list[str]:
        problems = self.check()
        read = {(m.partition(), m.offset()): m.value() for m in read_all(self.servers, self.topic)}
        problems += self._places_hold(read)
        return problems

    def _places_hold(self, read: dict[tuple[int, int], bytes | None]) -> list[str]:
        lost = [n for n, place in self.places.items() if read.get(place) != self.value(n)]
        return (
            [f"{self}: {len(lost)} acknowledged records are not where they were, the first is {lost[0]}"]
            if lost
            else []
        )

    def __str__(self) -> str:
        return f"producer of {self.topic}"


class Idempotent(Producing):
    """What it sends is there once, however often it was sent."""

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(servers, seed, "once", config={"enable.idempotence": True}, topic_config={})

    def check_all(self) -> list[str]:
        counts = Counter(message.value() for message in read_all(self.servers, self.topic))
        twice = [value for value, count in counts.items() if count > 1]
        problems = [f"{self}: {len(twice)} records are there twice, {twice[0]!r} first"] if twice else []
        return problems + super().check_all()


class Plain(Producing):
    """May repeat itself, must not lose anything."""

    def __init__(self, servers: str, seed: int, acks: str) -> None:
        super().__init__(servers, seed, f"acks-{acks}", config={"acks": acks}, topic_config={})


class Compacted(Producing):
    """Of each key at least the last acknowledged value is there, however much was compacted."""

    def __init__(self, servers: str, seed: int) -> None:
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        super().__init__(servers, seed, "compacted", config={"enable.idempotence": True}, topic_config=settings)

    def _places_hold(self, read: dict[tuple[int, int], bytes | None]) -> list[str]:
        newest: dict[bytes, int] = {}
        for number in self.places:
            newest[self.key(number)] = max(newest.get(self.key(number), -1), number)
        values = set(read.values())
        lost = [number for number in newest.values() if self.value(number) not in values]
        moved = [n for n, place in self.places.items() if read.get(place, self.value(n)) != self.value(n)]
        return (
            [f"{self}: lost the last values {lost}, other records at the offsets of {moved[:3]}"]
            if lost or moved
            else []
        )


class Trimmed(Producing):
    """Its front goes by DeleteRecords all the time: what is left is what was acknowledged there, offsets go on."""

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(servers, seed, "trimmed", config={"enable.idempotence": True}, topic_config={})
        self._starts: dict[int, int] = {}

    def check(self) -> list[str]:
        problems = super().check()
        with self._lock:
            ends = dict(self._ends)
        admin = AdminClient({"bootstrap.servers": self.servers, **PATIENT})
        found = offsets(admin, self.topic, list(ends), OffsetSpec.earliest())
        for partition, start in self._starts.items():
            if found.get(partition, start) < start:
                problems.append(f"{self}: the start of {partition} went back from {start} to {found[partition]}")
        wanted = [TopicPartition(self.topic, p, max(end - 200, 0)) for p, end in ends.items()]
        for asked, future in admin.delete_records(wanted).items():
            with suppress(KafkaException, TimeoutError):
                self._starts[asked.partition] = future.result(10).low_watermark
        return problems

    def _places_hold(self, read: dict[tuple[int, int], bytes | None]) -> list[str]:
        starts: dict[int, int] = {}
        for partition, offset in read:
            starts[partition] = min(starts.get(partition, offset), offset)
        wrong = [
            n
            for n, (partition, offset) in self.places.items()
            if offset >= starts.get(partition, 0) and read.get((partition, offset)) != self.value(n)
        ]
        return [f"{self}: {len(wrong)} records behind the log start are wrong"] if wrong else []


class Committing(Load):
    """Commits rising offsets for a group; an acknowledged one is never forgotten."""

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(servers, seed)
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.committed = -1

    def acked(self) -> int:
        return self.committed + 1

    def run(self) -> None:
        create(self.servers, NewTopic("committed", 1, 1))
        while not self._stopping.is_set():
            # A commit that finds no coordinator waits for as long as a session lasts.
            with consumer_of(self.servers, self.group, **{"session.timeout.ms": 6000}) as consumer:
                consumer.assign([TopicPartition("committed", 0, 0)])
                offset = self.committed + 1
                while not self._stopping.is_set():
                    try:
                        consumer.commit(offsets=[TopicPartition("committed", 0, offset)], asynchronous=False)
                    except KafkaException:
                        break
                    self.committed = offset
                    offset += 1

    def check(self) -> list[str]:
        expected = self.committed
        if expected < 0:
            return []
        with consumer_of(self.servers, self.group) as consumer:
            (found,) = consumer.committed([TopicPartition("committed", 0)], timeout=30)
        return [f"{self.group}: committed {expected}, found {found.offset}"] if found.offset < expected else []

    check_all = check


class Transacting(Load):
    """
    Transactions of a few records over all partitions, committed or aborted at random.

    What a reader of committed records sees is each committed transaction whole and once, none that was aborted, and
    one whose end was in doubt whole or not at all.
    """

    topic = "transacted"

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(servers, seed)
        self.sizes: dict[int, int] = {}
        self.committed: set[int] = set()
        self.aborted: set[int] = set()

    def acked(self) -> int:
        return sum(self.sizes[number] for number in list(self.committed))

    def run(self) -> None:
        create(self.servers, NewTopic(self.topic, 3, 1, config={"segment.bytes": SEGMENT_BYTES}))
        number = 0
        while not self._stopping.is_set():
            producer = Producer(
                {"bootstrap.servers": self.servers, "transactional.id": "killed", "linger.ms": 2, **PATIENT}
            )
            # The next producer of this id ends what the last one left open.
            with suppress(KafkaException):
                producer.init_transactions(30)
                while not self._stopping.is_set():
                    number += 1
                    self._one(producer, number)

    def _one(self, producer: Producer, number: int) -> None:
        self.sizes[number] = size = self.rng.randrange(1, 12)
        producer.begin_transaction()
        for at in range(size):
            producer.produce(self.topic, b"%d.%d" % (number, at), partition=self.rng.randrange(3))
        if self.rng.random() < 0.5:
            producer.flush(1)
        if self.rng.random() < 0.3:
            producer.abort_transaction(20)
            self.aborted.add(number)
        else:
            producer.commit_transaction(20)
            self.committed.add(number)

    def check_all(self) -> list[str]:
        seen = Counter(message.value() for message in read_all(self.servers, self.topic))
        transactions = Counter(int((value or b"").partition(b".")[0]) for value in seen)
        problems = [f"{value!r} is there {count} times" for value, count in seen.items() if count > 1]
        for number, size in self.sizes.items():
            found = transactions[number]
            if number in self.committed and found != size:
                problems.append(f"of transaction {number}, committed with {size} records, {found} are seen")
            elif number in self.aborted and found:
                problems.append(f"{found} records of the aborted transaction {number} are seen")
            elif found not in (0, size):
                problems.append(f"transaction {number} is torn: {found} of {size} records are seen")
        return problems


class Administering(Load):
    """Makes, changes and deletes topics; what was acknowledged is so after every restart."""

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(servers, seed)
        self._lock = threading.Lock()
        self.alive: dict[str, str] = {}  # and their retention.ms
        self.gone: set[str] = set()

    def acked(self) -> int:
        return len(self.alive) + len(self.gone)

    def run(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers, **PATIENT})
        number = 0
        while not self._stopping.wait(0.02):
            number += 1
            with suppress(KafkaException, TimeoutError):
                self._one(admin, f"made-{number}")

    def _one(self, admin: AdminClient, name: str) -> None:
        config = {"retention.ms": str(self.rng.randrange(10**6, 10**7))}
        admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(5)
        with self._lock:
            self.alive[name] = config["retention.ms"]
            if len(self.alive) < 4:
                return
            changed, doomed = self.rng.sample(sorted(self.alive), 2)
            # In doubt until it is acknowledged.
            del self.alive[changed], self.alive[doomed]
        value = str(self.rng.randrange(10**7, 10**8))
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, changed, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(5)
        with self._lock:
            self.alive[changed] = value
        admin.delete_topics([doomed])[doomed].result(5)
        with self._lock:
            self.gone.add(doomed)

    def check(self) -> list[str]:
        with self._lock:
            alive, gone = dict(self.alive), set(self.gone)
            there = set(AdminClient({"bootstrap.servers": self.servers, **PATIENT}).list_topics(timeout=30).topics)
        problems = [f"{name} was made and is gone" for name in alive if name not in there]
        problems += [f"{name} was deleted and is there" for name in gone & there]
        return problems

    def check_all(self) -> list[str]:
        admin = AdminClient({"bootstrap.servers": self.servers, **PATIENT})
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in self.alive]
        problems = self.check()
        for resource, future in admin.describe_configs(resources).items() if resources else ():
            found = future.result(30)["retention.ms"].value
            if found != self.alive[resource.name]:
                problems.append(f"{resource.name}: retention.ms is {found}, set to {self.alive[resource.name]}")
        return problems


# Asking.


def create(servers: str, topic: NewTopic) -> None:
    """Make a topic, however often that must be asked for."""
    admin = AdminClient({"bootstrap.servers": servers, **PATIENT})
    for _ in range(20):
        try:
            admin.create_topics([topic])[topic.topic].result(10)
        except TimeoutError:
            continue
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                continue
        return
    raise AssertionError(f"{topic.topic} could not be made")


def offsets(admin: AdminClient, topic: str, partitions: list[int], which: Any) -> dict[int, int]:
    wanted = {TopicPartition(topic, partition): which for partition in partitions}
    if not wanted:
        return {}
    return {at.partition: future.result(30).offset for at, future in admin.list_offsets(wanted).items()}


def latest(servers: str, topic: str, partitions: list[int]) -> dict[int, int]:
    return offsets(AdminClient({"bootstrap.servers": servers, **PATIENT}), topic, partitions, OffsetSpec.latest())


@contextmanager
def consumer_of(servers: str, group: str, **config: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, **PATIENT, **config}
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read_all(servers: str, topic: str, **config: Any) -> list[Message]:
    """Read a topic from its start to its end, every checksum looked at."""
    admin = AdminClient({"bootstrap.servers": servers, **PATIENT})
    partitions = list(admin.list_topics(topic, timeout=30).topics[topic].partitions)
    ends = latest(servers, topic, partitions)
    settings = {"check.crcs": True, "enable.partition.eof": True, "auto.offset.reset": "earliest", **config}
    messages: list[Message] = []
    with consumer_of(servers, "reader", **settings) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        missing = set(ends)
        progress = time.monotonic()
        while missing:
            for message in consumer.consume(2000, 0.3):
                progress = time.monotonic()
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    missing.discard(message.partition())
                else:
                    raise AssertionError(f"reading {topic}: {error}")
            assert time.monotonic() < progress + 60, f"reading {topic} stands still, {missing} of {ends} to go"
    return messages
