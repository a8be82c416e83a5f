"""Handlers that call a server which takes the connection and never answers: what becomes of their group and records."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from secured import librdkafka

import log_broker
from examples.outside_calls import HandOff, handle_within
from log_broker.server.embedded import EmbeddedBroker

INTERVAL_MS = 2000
VALUES = [b"a", b"stuck", b"b", b"c", b"d"]
PATIENCE_SECONDS = 60.0


class SilentServer:
    """Accepts, reads, and answers only once it is told to."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()
        self.answering = threading.Event()
        self._links: list[socket.socket] = []

    def call(self, value: bytes) -> None:
        """Do what a handler does: for one record ask the server, and wait for as long as it takes."""
        if value == b"stuck":
            with socket.create_connection(self.address) as link:
                link.sendall(b"please")
                self.answering.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.answering.set()
        self._server.close()


@pytest.fixture
def server() -> Iterator[SilentServer]:
    one = SilentServer()
    yield one
    one.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with log_broker.embedded(group_min_session_timeout_ms=100) as running:
        yield running


@pytest.fixture
def pool(server: SilentServer) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as running:
        yield running
        server.answering.set()


def filled(broker: EmbeddedBroker) -> str:
    topic = broker.unique_topic()
    producer = Producer({**librdkafka(broker.bootstrap_servers), "log_level": 0})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    return topic


def member(broker: EmbeddedBroker, topic: str) -> Consumer:
    client = Consumer(
        {
            **librdkafka(broker.bootstrap_servers),
            "group.id": topic,
            "session.timeout.ms": INTERVAL_MS,
            "heartbeat.interval.ms": 200,
            "max.poll.interval.ms": INTERVAL_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    client.subscribe([topic])
    return client


def until(condition: Callable[[], bool], act: Callable[[], object] = lambda: time.sleep(0.02)) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        act()


def committed(client: Consumer, topic: str) -> int:
    return int(client.committed([TopicPartition(topic, 0)], 30)[0].offset)


def test_without_a_limit_the_next_member_is_stuck_on_the_same_record(
    broker: EmbeddedBroker, server: SilentServer
) -> None:
    topic = filled(broker)
    took: list[bytes] = []

    def work() -> None:
        client = member(broker, topic)
        message: Any = None
        while b"stuck" not in took:
            message = client.poll(0.1)
            if message is None or message.error() is not None:
                continue
            took.append(message.value())
            server.call(message.value())
            if message.value() != b"stuck":
                client.commit(message, asynchronous=False)
        client.close()

    first = threading.Thread(target=work)
    first.start()
    until(lambda: b"stuck" in took)
    second = member(broker, topic)
    found: list[bytes] = []

    def poll() -> None:
        message: Any = second.poll(0.05)
        if message is not None and message.error() is None:
            found.append(message.value())

    until(lambda: bool(found), poll)
    assert found[0] == b"stuck", "the same record again"
    second.close()
    server.answering.set()
    first.join()


def test_with_a_time_limit_all_go_on_and_the_record_is_put_aside(
    broker: EmbeddedBroker, server: SilentServer, pool: ThreadPoolExecutor
) -> None:
    topic, aside = filled(broker), broker.unique_topic("retry")
    producer = Producer({**librdkafka(broker.bootstrap_servers), "log_level": 0})
    handled: list[bytes] = []

    def call(value: bytes) -> None:
        server.call(value)
        handled.append(value)

    client = member(broker, topic)
    until(
        lambda: committed(client, topic) == 2,
        lambda: handle_within(client, call, pool=pool, seconds=0.3, producer=producer, retry_topic=aside),
    )
    client.close()  # as after a crash: the next one goes on at the commit
    client = member(broker, topic)
    until(
        lambda: committed(client, topic) == len(VALUES),
        lambda: handle_within(client, call, pool=pool, seconds=0.3, producer=producer, retry_topic=aside),
    )
    client.close()
    assert handled == [b"a", b"b", b"c", b"d"]
    reader = member(broker, aside)
    message: Any = None
    while message is None:
        message = reader.poll(0.2)
    assert (message.value(), message.headers()) == (b"stuck", [("from", f"{topic}-0@1".encode())])
    reader.close()


def test_with_a_hand_off_nothing_after_the_stuck_record_is_committed(
    broker: EmbeddedBroker, server: SilentServer, pool: ThreadPoolExecutor
) -> None:
    topic, done = filled(broker), []

    def call(value: bytes) -> None:
        server.call(value)
        done.append(value)

    client = member(broker, topic)
    hand_off = HandOff(client, call, pool)
    until(lambda: len(done) == 4, hand_off.turn)
    stuck_since = time.monotonic()
    until(lambda: time.monotonic() > stuck_since + 1.25 * INTERVAL_MS / 1000, hand_off.turn)
    assert sorted(done) == [b"a", b"b", b"c", b"d"]
    assert committed(client, topic) == 1, "what is behind the stuck one would come again"
    assert len(client.assignment()) == 1, "nobody has let it go"
    server.answering.set()
    until(lambda: committed(client, topic) == len(VALUES), hand_off.turn)
    assert sorted(done) == sorted(VALUES)
    client.close()
