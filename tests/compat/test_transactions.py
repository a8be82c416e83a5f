"""Transactions with the Python clients, and through kills of the broker."""

import asyncio
import random
import uuid
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from compat_cluster import COPIES
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from secured import aiokafka, librdkafka

KILLS = 3


@pytest.fixture
def name() -> str:
    return f"txn-{uuid.uuid4().hex[:8]}"


def transactional(bootstrap_servers: str, transactional_id: str, **settings: object) -> Producer:
    producer = Producer(
        {
            **librdkafka(bootstrap_servers),
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _: None,
            **settings,
        }
    )
    producer.init_transactions(30)
    return producer


def reader(bootstrap_servers: str, group: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            **librdkafka(bootstrap_servers),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "session.timeout.ms": 6000,
        }
    )


def read_all(bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[str]:
    """Read each partition from its start up to what its end is now."""
    consumer = reader(bootstrap_servers, "reads-all", isolation)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    values: list[str] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None, "the end of a partition is not reached"
        if message.error() is None:
            values.append(message.value().decode())
        else:
            ended.add(message.partition())
    consumer.close()
    return values


def make_topic(bootstrap_servers: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient(librdkafka(bootstrap_servers))
    admin.create_topics([NewTopic(name, partitions, COPIES)])[name].result(30)


def test_readers_of_committed_records_see_whole_transactions_only(broker, name) -> None:
    servers = broker.bootstrap_servers
    make_topic(servers, name, 2)
    producer = transactional(servers, name)
    for number in range(6):
        producer.begin_transaction()
        for at in range(4):
            producer.produce(name, f"{number}-{at}", partition=at % 2)
        producer.flush()
        (producer.commit_transaction if number % 2 == 0 else producer.abort_transaction)(30)
    producer.begin_transaction()
    producer.produce(name, "open", partition=0)
    producer.flush()
    assert sorted(read_all(servers, name, 2)) == sorted(f"{n}-{at}" for n in (0, 2, 4) for at in range(4))
    assert "open" in read_all(servers, name, 2, "read_uncommitted")
    producer.commit_transaction(30)
    assert "open" in read_all(servers, name, 2)


def test_a_second_producer_of_the_same_id_fences_the_first(broker, name) -> None:
    servers = broker.bootstrap_servers
    make_topic(servers, name)
    zombie = transactional(servers, name)
    zombie.begin_transaction()
    zombie.produce(name, "zombie")
    zombie.flush()
    successor = transactional(servers, name)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(30)
    assert refused.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(name, "successor")
    successor.commit_transaction(30)
    assert read_all(servers, name) == ["successor"]


def test_a_transaction_that_takes_too_long_is_aborted(broker, name) -> None:
    servers = broker.bootstrap_servers
    make_topic(servers, name)
    slow = transactional(servers, f"{name}-slow", **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce(name, "slow")
    slow.flush()
    other = transactional(servers, f"{name}-other")
    other.begin_transaction()
    other.produce(name, "other")
    other.commit_transaction(30)
    consumer = reader(servers, name)
    consumer.assign([TopicPartition(name, 0, 0)])
    messages: list[str] = []
    while not messages:
        message = consumer.poll(30)
        assert message is not None
        messages += [message.value().decode()] if message.error() is None else []
    consumer.close()
    assert messages == ["other"], "what waited behind the slow one is read once that is aborted"
    with pytest.raises(KafkaException):
        slow.commit_transaction(30)


def test_a_timeout_beyond_the_brokers_limit_is_refused(broker, name) -> None:
    with pytest.raises(KafkaException, match="timeout"):
        transactional(broker.bootstrap_servers, name, **{"transaction.timeout.ms": 900_001})


def test_offsets_are_committed_with_the_records_that_came_of_them(broker, name, eventually) -> None:
    servers = broker.bootstrap_servers
    make_topic(servers, f"{name}-in")
    make_topic(servers, f"{name}-out")
    source = Producer(librdkafka(servers))
    for number in range(60):
        source.produce(f"{name}-in", str(number))
    source.flush()
    chance = random.Random(7)
    aborts = 0
    while True:
        # Each round is a new process of the application: it goes on where the last committed transaction ended.
        consumer = reader(servers, name)
        consumer.subscribe([f"{name}-in"])
        producer = transactional(servers, name)
        done = False
        while not done:
            producer.begin_transaction()
            for _ in range(7):
                message = consumer.poll(30)
                assert message is not None
                done = message.error() is not None
                if done:
                    break
                producer.produce(f"{name}-out", message.value())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            if chance.random() < 0.4:
                producer.abort_transaction(30)
                aborts += 1
                done = False
                break
            producer.commit_transaction(30)
        consumer.close()
        if done:
            break
    assert aborts > 0
    assert read_all(servers, f"{name}-out") == [str(number) for number in range(60)]


async def test_aiokafka_commits_aborts_and_sends_offsets(broker, name) -> None:
    make_topic(broker.bootstrap_servers, name)
    place = TopicPartition(name, 0)
    async with AIOKafkaProducer(**aiokafka(broker.bootstrap_servers), transactional_id=name) as producer:
        for number in range(4):
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(name, b"%d" % number)
                    await producer.send_offsets_to_transaction({_aio(place): number + 1}, f"{name}-group")
                    assert 1 // (number % 2 - 1)
    consumer = AIOKafkaConsumer(
        name,
        **aiokafka(broker.bootstrap_servers),
        group_id=f"{name}-group",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    async with consumer:
        assert await consumer.committed(_aio(place)) == 3
        await consumer.seek_to_beginning()
        values = [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(2)]
    assert values == [b"0", b"2"]


def _aio(place: TopicPartition) -> object:
    from aiokafka import TopicPartition as AioTopicPartition

    return AioTopicPartition(place.topic, place.partition)


def test_kills_of_the_broker_tear_no_transaction(own_broker, name) -> None:
    """
    The broker is killed with transactions open, prepared and half marked.

    A transaction whose commit was answered is there as a whole, one whose abort was answered not at all, and any other
    as a whole or not at all.
    """
    servers = own_broker.bootstrap_servers
    make_topic(servers, name, 3)
    chance = random.Random(11)
    numbers = count()
    committed: set[int] = set()
    aborted: set[int] = set()
    for _ in range(KILLS):
        producer = transactional(servers, name)
        for number, kills in _rounds(numbers, chance):
            commits = chance.random() < 0.7
            try:
                producer.begin_transaction()
                for at in range(6):
                    producer.produce(name, f"{number} {at}", partition=at % 3)
                if kills == "open":
                    producer.flush(1)
                    own_broker.kill()
                    break
                if kills == "prepared":
                    # The request is on its way to the broker, or the broker at work on it, when that is killed.
                    producer.flush(10)
                    with suppress(KafkaException):
                        (producer.commit_transaction if commits else producer.abort_transaction)(0.001)
                    own_broker.kill()
                    break
                (producer.commit_transaction if commits else producer.abort_transaction)(30)
            except KafkaException:
                break
            (committed if commits else aborted).add(number)
        own_broker.kill()
        own_broker.start()
    transactional(servers, name)  # ends what was left open
    whole: dict[int, set[int]] = {}
    values = read_all(servers, name, 3)
    assert len(values) == len(set(values)), "nothing is there twice"
    for value in values:
        number, at = map(int, value.split())
        whole.setdefault(number, set()).add(at)
    assert committed <= set(whole), "a committed transaction is missing"
    assert not aborted & set(whole), "an aborted transaction is read"
    assert all(seen == set(range(6)) for seen in whole.values()), "a transaction is torn"


def _rounds(numbers: Iterator[int], chance: random.Random) -> Iterator[tuple[int, str]]:
    """Yield numbers of transactions, and in what state of the last the broker is killed."""
    for _ in range(chance.randint(3, 20)):
        yield next(numbers), ""
    yield next(numbers), chance.choice(["open", "prepared"])
