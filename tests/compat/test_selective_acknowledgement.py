"""Records acknowledged one by one: out of order, by threads, over crashes and rebalances, with real members."""

import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from compat_cluster import COPIES
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from secured import librdkafka

from fluvial.acknowledgement import Delivery, SelectiveConsumer
from fluvial.errors import ConfigError

RECORDS = 100
# Acknowledges every odd record of what it gets, in random order, and is then killed.
MEMBER = """
import json, random, sys
from fluvial.acknowledgement import SelectiveConsumer
settings, topic, count = sys.argv[1:]
consumer = SelectiveConsumer({**json.loads(settings), "group.id": topic, "auto.offset.reset": "earliest",
                              "session.timeout.ms": 6000, "log_level": 0})
consumer.subscribe([topic])
taken = []
while len(taken) < int(count):
    delivery = consumer.poll()
    if delivery is not None:
        taken.append(delivery)
random.Random(1).shuffle(taken)
for delivery in taken:
    if delivery.offset % 2:
        assert consumer.acknowledge(delivery)
consumer.commit()
print("committed", flush=True)
for delivery in taken:
    consumer.acknowledge(delivery)
sys.stdin.readline()
"""


@pytest.fixture
def topic(broker: Any) -> str:
    name = f"acks-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.create_topics([NewTopic(name, 2, COPIES)])[name].result(30)
    return name


def send(broker: Any, topic: str, count: int = RECORDS, *, keys: int = 0, partition: int = 0) -> None:
    producer = Producer({**librdkafka(broker.bootstrap_servers), "log_level": 0})
    for number in range(count):
        key = b"key-%d" % (number % keys) if keys else None
        producer.produce(topic, b"%d" % number, key, partition=partition)
    assert producer.flush(30) == 0


def settings_of(broker: Any, group: str) -> dict[str, Any]:
    return {
        **librdkafka(broker.bootstrap_servers),
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "log_level": 0,
    }


def member(broker: Any, topic: str, **more: Any) -> SelectiveConsumer:
    consumer = SelectiveConsumer(settings_of(broker, topic), **more)
    consumer.subscribe([topic])
    return consumer


def take(consumer: SelectiveConsumer, count: int, seconds: float = 60.0) -> list[Delivery]:
    found: list[Delivery] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        delivery = consumer.poll(0.5)
        if delivery is not None:
            found.append(delivery)
    return found


def test_after_a_kill_only_those_come_again_that_were_not_acknowledged(broker: Any, topic: str) -> None:
    send(broker, topic)
    killed = subprocess.Popen(
        [sys.executable, "-c", MEMBER, json.dumps(librdkafka(broker.bootstrap_servers)), topic, str(RECORDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert killed.stdout is not None
    try:
        assert killed.stdout.readline() == "committed\n"
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    send(broker, topic)
    with member(broker, topic) as consumer:
        found = [each.offset for each in take(consumer, RECORDS // 2 + RECORDS)]
        assert consumer.poll(0.5) is None
    assert found == [*range(0, RECORDS, 2), *range(RECORDS, 2 * RECORDS)]


def test_a_reader_that_knows_nothing_of_it_misses_nothing(broker: Any, topic: str) -> None:
    send(broker, topic)
    with member(broker, topic) as consumer:
        for delivery in take(consumer, RECORDS):
            if delivery.offset != 40:
                consumer.acknowledge(delivery)
    ordinary = Consumer({**settings_of(broker, topic), "enable.auto.commit": False})
    ordinary.subscribe([topic])
    try:
        message = ordinary.poll(30)
        assert message is not None
        assert message.error() is None
        assert message.offset() == 40
        ordinary.commit(message, asynchronous=False)
    finally:
        ordinary.close()
    # Nor does it what others have committed.
    with member(broker, topic) as consumer:
        assert [each.offset for each in take(consumer, RECORDS - 41)] == list(range(41, RECORDS))


def test_a_stuck_key_holds_up_its_own_records_alone(broker: Any, topic: str) -> None:
    keys = 10
    send(broker, topic, keys=keys)
    handled: dict[bytes, list[int]] = {}
    attempts: list[int] = []
    with member(broker, topic, order="key") as consumer, ThreadPoolExecutor(4) as pool:

        def handle(delivery: Delivery) -> None:
            key, value = delivery.message.key(), delivery.message.value()
            assert key is not None
            assert value is not None
            if key == b"key-3" and len(attempts) < 5:
                attempts.append(delivery.attempt)
                consumer.retry(delivery, after=0.05)
                return
            time.sleep(random.Random(delivery.offset).random() / 100)
            handled.setdefault(key, []).append(int(value))
            consumer.acknowledge(delivery)

        under_way = []
        deadline = time.monotonic() + 60
        before_it = 0
        while sum(map(len, handled.values())) < RECORDS:
            assert time.monotonic() < deadline, handled
            delivery = consumer.poll(0.2)
            if delivery is not None:
                under_way.append(pool.submit(handle, delivery))
            if b"key-3" not in handled:
                before_it = sum(map(len, handled.values()))
        for each in under_way:
            each.result()
    assert attempts == [1, 2, 3, 4, 5]
    assert before_it > keys, "others went on"
    assert handled == {b"key-%d" % key: list(range(key, RECORDS, keys)) for key in range(keys)}


def test_members_come_and_go_and_what_was_acknowledged_stays_so(broker: Any, topic: str) -> None:
    send(broker, topic, partition=0)
    send(broker, topic, partition=1)
    done: list[tuple[int, int]] = []

    def work(consumer: SelectiveConsumer, deliveries: list[Delivery]) -> None:
        dice.shuffle(deliveries)
        for delivery in deliveries:
            # What no longer counts comes again, here or elsewhere.
            if consumer.acknowledge(delivery):
                partition = delivery.message.partition()
                assert partition is not None
                done.append((partition, delivery.offset))

    dice = random.Random(2)
    first = member(broker, topic)
    held = take(first, 60)
    work(first, held[::3])
    second = member(broker, topic)
    rest: list[Delivery] = [each for at, each in enumerate(held) if at % 3]
    deadline = time.monotonic() + 60
    # Until the second has got its partition; the first polls on, as it must.
    got: list[Delivery] = []
    while not got:
        assert time.monotonic() < deadline
        if (delivery := first.poll(0.1)) is not None:
            rest.append(delivery)
        if (delivery := second.poll(0.1)) is not None:
            got.append(delivery)
    work(first, rest)
    first.close()
    work(second, got)
    while len(done) < 2 * RECORDS:
        assert time.monotonic() < deadline, len(done)
        if (delivery := second.poll(0.2)) is not None:
            work(second, [delivery])
    assert second.poll(0.5) is None
    second.close()
    assert sorted(done) == [(partition, offset) for partition in range(2) for offset in range(RECORDS)]


def test_a_partition_waits_while_too_many_of_its_records_are_open(broker: Any, topic: str) -> None:
    send(broker, topic)
    with member(broker, topic, open_max=10) as consumer:
        first = take(consumer, 10)
        assert consumer.poll(1.0) is None
        for delivery in first:
            consumer.acknowledge(delivery)
        for delivery in (following := take(consumer, 10)):
            consumer.acknowledge(delivery)
        assert [each.offset for each in [*first, *following]] == list(range(20))


def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    broker: Any, topic: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    send(broker, topic, 20)
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    with member(broker, topic) as consumer:
        old = take(consumer, 20)
        assert all(consumer.acknowledge(each) for each in old[:10])
        admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: topic not in admin.list_topics(timeout=5).topics)
        admin.create_topics([NewTopic(topic, 2, COPIES)])[topic].result(30)
        send(broker, topic, 5)
        found: list[Delivery] = []
        deadline = time.monotonic() + 60
        while len(found) < 5:
            assert time.monotonic() < deadline, found
            # What is said of the topic while it is not there.
            with suppress(KafkaException):
                found += [delivery] if (delivery := consumer.poll(0.5)) is not None else []
        assert [each.offset for each in found] == [0, 1, 2, 3, 4]
        assert not consumer.acknowledge(old[15]), "its record is gone"


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        ({}, {}, "group.id"),
        ({"group.id": "g", "enable.auto.commit": "true"}, {}, "enable.auto.commit"),
        ({"group.id": "g"}, {"order": "value"}, '"none" or "key"'),
        ({"group.id": "g"}, {"open_max": 0}, "open_max"),
    ],
)
def test_what_cannot_work_is_said_at_once(config: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SelectiveConsumer(config, **more)
