"""
A publication that is killed at any step, run twice at once or failing: its topic has each change once, in order.
"""

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from table_in_memory import VERSIONS, InMemory, differences, publication_run

import log_broker
from fluvial.delta.stamp import TableError
from fluvial.tables.publishing.planning import Step
from fluvial.tables.publishing.progress import Version
from fluvial.tables.publishing.transactions import VERSION_HEADER, FencedError, Record

PROGRAM = Path(__file__).with_name("table_in_memory.py")
# init; begin, progress, flush, commit; two transactions of two records and one of one, each with its progress.
STEPS = 1 + 4 + 7 + 7 + 6
COMMITS = (5, 12, 19, 25)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    given = os.environ.get("FLUVIAL_TEST_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with log_broker.embedded() as broker:
        yield broker.bootstrap_servers


def new_topic() -> str:
    return f"things-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Seen:
    """A record as a reader has it."""

    key: str
    value: str | None
    version: int


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[Seen]:
    """All records of a topic, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        waiting, seen = set(partitions), []
        while waiting:
            message = consumer.poll(30)
            assert message is not None, "the end of the topic is not reached"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                waiting.discard(message.partition())
                continue
            value = message.value()
            version = int(dict(message.headers())[VERSION_HEADER])
            seen.append(Seen(message.key().decode(), None if value is None else value.decode(), version))
        return seen
    finally:
        consumer.close()


def assert_exact(seen: list[Seen]) -> None:
    """Version 0 in whole or not at all, then what version 1 changes of it, nothing twice, in order."""
    first = [each for each in seen if each.version == 0]
    second = [each for each in seen if each.version == 1]
    before = VERSIONS[0] if first else {}
    for records, expected in ((first, differences({}, before)), (second, differences(before, VERSIONS[1]))):
        assert sorted((each.key, each.value) for each in records) == sorted(
            (key, None if value is None else value.decode()) for key, value in expected
        )
    for key in {each.key for each in seen}:
        versions = [each.version for each in seen if each.key == key]
        assert versions == sorted(versions)


def test_killed_at_any_step_each_version_is_published_once(servers: str) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    # One more step than there are is not killed; half a step is while the commit is on its way.
    points = [*range(1, STEPS + 2), *(commit + 0.5 for commit in COMMITS)]
    topics = {new_topic(): point for point in points}
    words = [f"{topic}:{point}" for topic, point in topics.items()]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), servers, str(seed), *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert {topics[topic] for topic, signal in ended.items() if signal == 0} == {STEPS + 1}
    assert len(ended) == len(topics)
    for topic, point in topics.items():
        seen = read(servers, topic)
        try:
            assert_exact(seen)
        except AssertionError as error:
            raise AssertionError(f"killed at step {point} of {STEPS}, seed {seed}: {seen}") from error


def test_of_two_publishers_at_once_the_older_is_fenced(servers: str) -> None:
    topic = new_topic()
    begun, go_on = threading.Event(), threading.Event()

    class Slow(InMemory):
        @contextmanager
        def changes(self, step: Step, *, unordered_max: int) -> Iterator[Iterator[Record]]:
            with super().changes(step, unordered_max=unordered_max) as records:

                def slowly() -> Iterator[Record]:
                    for number, record in enumerate(records):
                        if number == 1:
                            begun.set()
                            assert go_on.wait(60)
                        yield record

                yield slowly()

    with ThreadPoolExecutor(1) as other:
        older = other.submit(publication_run(servers, topic, Slow(0)).run)
        assert begun.wait(60)
        result = publication_run(servers, topic, InMemory(1)).run()
        go_on.set()
        with pytest.raises(FencedError, match="another run began to publish it"):
            older.result(60)
    assert (result.version_before, result.version_after) == (None, 1)
    assert_exact(read(servers, topic))


def test_what_fails_in_the_middle_leaves_nothing_to_be_seen(servers: str) -> None:
    topic = new_topic()

    @dataclass(frozen=True)
    class Failing(InMemory):
        produced: list[Record] = field(default_factory=list)

        @contextmanager
        def changes(self, step: Step, *, unordered_max: int) -> Iterator[Iterator[Record]]:
            def failing() -> Iterator[Record]:
                yield "a", b"never"
                yield "b", b"seen"
                raise RuntimeError("the source fails")

            yield failing()

    with pytest.raises(RuntimeError, match="the source fails"):
        publication_run(servers, topic, Failing(0)).run()
    assert read(servers, topic) == []
    assert publication_run(servers, topic, InMemory(0)).run().rows == len(VERSIONS[0])
    result = publication_run(servers, topic, InMemory(1)).run()
    assert (result.skipped, result.rows, result.version_before, result.version_after) == (False, 4, 0, 1)
    assert publication_run(servers, topic, InMemory(1)).run().skipped
    assert_exact(read(servers, topic))
    tombstones = [each.key for each in read(servers, topic) if each.value is None]
    assert tombstones == ["a"]


@dataclass(frozen=True)
class _MadeAgain(InMemory):
    def commit_of(self, number: int) -> str | None:
        return f"another commit {number}"

    def newest(self) -> Version:
        return Version(number=self.last, commit=self.commit_of(self.last))


def test_a_table_that_was_made_again_is_not_gone_on_with(servers: str) -> None:
    topic = new_topic()
    publication_run(servers, topic, InMemory(0)).run()
    with pytest.raises(TableError, match=f"was removed and recreated.*--rebuild topics.{topic}"):
        publication_run(servers, topic, _MadeAgain(1)).run()


def test_a_topic_that_holds_something_else_is_left_alone(servers: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = new_topic()
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"somebody's")
    assert producer.flush(30) == 0
    with pytest.raises(TableError, match="holds records already"):
        publication_run(servers, topic, InMemory(0)).run()
    admin.delete_topics([topic])[topic].result(30)
    # Made again by the next run, and then deleted behind its back.
    publication_run(servers, topic, InMemory(0)).run()
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(TableError, match="was deleted"):
        publication_run(servers, topic, InMemory(1)).run()
