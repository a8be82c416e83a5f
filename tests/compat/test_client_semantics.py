"""What stock clients may rely on: order, keys and partitions, what a reader sees, what a restart does to a producer."""

import contextlib
import hashlib
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from compat_cluster import COPIES
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from secured import kafka_python, librdkafka

import log_broker
from log_broker.records import batches_in
from log_broker.wire.apis import ApiKey

with warnings.catch_warnings():
    # It reads its schemas by a function that the standard library is about to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.partitioner import Partitioner, StickyPartitioner

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

Message = tuple[int, int, bytes | None, bytes | None]  # partition, offset, key, value


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def make(broker: Any, topic: str, partitions: int = 1) -> str:
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.create_topics([NewTopic(topic, partitions, COPIES)])[topic].result(30)
    return topic


def producer_of(broker: Any, **settings: Any) -> Producer:
    defaults = {**librdkafka(broker.bootstrap_servers), "partitioner": "murmur2_random", "log_level": 0}
    return Producer({**defaults, **settings})


@contextlib.contextmanager
def reader_of(broker: Any, topic: str, partitions: int = 1, offset: int = 0, **settings: Any) -> Iterator[Consumer]:
    """A reader that picks its partitions itself: no group is made."""
    required = {**librdkafka(broker.bootstrap_servers), "group.id": "none", "enable.auto.commit": False}
    client = Consumer({**required, "log_level": 0, **settings})
    client.assign([TopicPartition(topic, partition, offset) for partition in range(partitions)])
    try:
        yield client
    finally:
        client.close()


def take(client: Consumer, count: int, *, pause: float = 0.0, seconds: float = 60.0) -> list[Message]:
    """Read `count` messages; a pause between them makes a slow reader."""
    found: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        for message in client.consume(min(count - len(found), 100), 0.2):
            assert message.error() is None, message.error()
            found.append((message.partition(), message.offset(), message.key(), message.value()))
            time.sleep(pause)
    return found


def in_threads(work: Callable[[int], None], count: int) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_every_reader_sees_one_order_whoever_writes(broker: Any) -> None:
    topic, writers, each = make(broker, name("order")), 8, 100

    def write(number: int) -> None:
        producer = producer_of(broker, **{"enable.idempotence": True, "linger.ms": 1})
        for at in range(each):
            producer.produce(topic, key=str(number), value=f"{number}:{at}")
            producer.poll(0)
        assert producer.flush(60) == 0

    in_threads(write, writers)
    seen: dict[int, list[Message]] = {}

    def read(number: int) -> None:
        with reader_of(broker, topic, **{"max.partition.fetch.bytes": 200 + 1000 * number}) as client:
            seen[number] = take(client, writers * each, pause=0.0002 * number)

    in_threads(read, 5)
    digests = {hashlib.sha256(repr(messages).encode()).hexdigest() for messages in seen.values()}
    assert len(digests) == 1
    for number in range(writers):
        own = [value for _, _, key, value in seen[0] if key == b"%d" % number]
        assert own == [b"%d:%d" % (number, at) for at in range(each)], "each writer's records in the order it sent them"
    assert [offset for _, offset, _, _ in seen[0]] == list(range(writers * each))


def test_order_holds_within_a_partition_and_not_across_two(broker: Any) -> None:
    topic, count = make(broker, name("across"), 2), 400
    producer = producer_of(broker, **{"linger.ms": 0})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=number % 2)
        if number % 20 == 0:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0
    with reader_of(broker, topic, 2) as client:
        found = take(client, count)
    for partition in range(2):
        assert [int(value or b"") for each, *_, value in found if each == partition] == [*range(partition, count, 2)]
    # They were sent in turn, and come as each partition is fetched.
    assert [int(value or b"") for *_, value in found] != [*range(count)]


def test_counters_lose_no_update_in_the_log_and_do_without_it(broker: Any) -> None:
    topic, writers, each, keys = make(broker, name("counters"), 3), 4, 150, 5
    plain = Counter[int]()
    together = threading.Barrier(writers)

    def count(number: int) -> None:
        producer = producer_of(broker, **{"enable.idempotence": True})
        chance = Random(number)
        for at in range(each):
            key = chance.randrange(keys)
            producer.produce(topic, key=str(key), value="1")
            if at == 0:
                old = plain[key]
                together.wait()  # all have read before any writes: the lost update, made certain
                plain[key] = old + 1
            else:
                plain[key] += 1
        assert producer.flush(60) == 0

    in_threads(count, writers)
    sent = Counter(Random(number).randrange(keys) for number in range(0))
    for number in range(writers):
        chance = Random(number)
        sent.update(chance.randrange(keys) for _ in range(each))
    with reader_of(broker, topic, 3) as client:
        folded = Counter[int]()
        for _, _, key, value in take(client, writers * each):
            assert key is not None
            assert value is not None
            folded[int(key)] += int(value)
    assert folded == sent
    first = [Random(number).randrange(keys) for number in range(writers)]
    assert len(set(first)) < writers, "two writers begin with the same key"
    assert plain.total() < sent.total(), "read, add, write loses updates"


def test_null_empty_and_binary_are_told_apart(broker: Any) -> None:
    topic = make(broker, name("bytes"))
    every_byte = bytes(range(256))
    sent = [(key, value) for key in (None, b"", b"k", every_byte) for value in (None, b"", b"v", every_byte)]
    producer = producer_of(broker)
    for key, value in sent:
        producer.produce(topic, key=key, value=value, headers=[("null", None), ("empty", b""), ("all", every_byte)])
    assert producer.flush(30) == 0
    with reader_of(broker, topic) as client:
        assert [(key, value) for _, _, key, value in take(client, len(sent))] == sent
        client.seek(TopicPartition(topic, 0, 0))
        (message,) = client.consume(1, 10)
        assert message.headers() == [("null", None), ("empty", b""), ("all", every_byte)]


# Keys and partitions: murmur2 of these keys, made positive, as Kafka's own test of its partitioner has it.
REFERENCE = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}


def test_equal_keys_go_to_one_partition_from_every_client(broker: Any) -> None:
    topic, partitions = make(broker, name("keys"), 5), 5
    keys = [b"key-%d" % number for number in range(300)] + list(REFERENCE)
    native = producer_of(broker)
    python = KafkaProducer(**kafka_python(broker.bootstrap_servers))
    for key in keys:
        native.produce(topic, key=key, value=b"c")
        python.send(topic, key=key, value=b"python")
    assert native.flush(30) == 0
    python.close()
    with reader_of(broker, topic, partitions) as client:
        found = take(client, 2 * len(keys))
    places: dict[bytes, set[int]] = {}
    for partition, _, key, _ in found:
        assert key is not None
        places.setdefault(key, set()).add(partition)
    assert set(places) == set(keys)
    assert all(len(one) == 1 for one in places.values()), "no key is in two partitions"
    assert Counter(key for _, _, key, _ in found) == Counter(2 * keys), "all partitions together are the input"
    for key, hashed in REFERENCE.items():
        assert places[key] == {(hashed & 0x7FFFFFFF) % partitions}
    assert len(set.union(*places.values())) == partitions


def test_an_application_has_its_own_way_with_keys(broker: Any) -> None:
    topic = make(broker, name("own"), 4)

    class ImportantFirst(Partitioner):
        """Partition 0 for those who matter."""

        def partition(self, topic: str, key: bytes, *_others: Any) -> int:
            return 0 if key.startswith(b"vip") else 1 + key[-1] % 3

    producer = KafkaProducer(**kafka_python(broker.bootstrap_servers), partitioner=ImportantFirst())
    for number in range(60):
        producer.send(topic, key=b"vip%d" % number if number % 6 == 0 else b"%d" % number, value=b"v")
    producer.close()
    with reader_of(broker, topic, 4) as client:
        found = take(client, 60)
    assert {partition for partition, _, key, _ in found if (key or b"").startswith(b"vip")} == {0}
    assert {partition for partition, _, key, _ in found if not (key or b"").startswith(b"vip")} == {1, 2, 3}


def test_records_without_a_key_are_spread_by_chance_or_in_turn(broker: Any) -> None:
    topic, partitions, each = make(broker, name("null"), 3), 3, 200
    chance = producer_of(broker, **{"partitioner": "random", "sticky.partitioning.linger.ms": 0})
    for _ in range(partitions * each):
        chance.produce(topic, value=b"chance")
    assert chance.flush(30) == 0
    turn = producer_of(broker)
    for number in range(partitions * each):
        turn.produce(topic, value=b"turn", partition=number % partitions)
    assert turn.flush(30) == 0
    sticky = KafkaProducer(**kafka_python(broker.bootstrap_servers), partitioner=StickyPartitioner(), linger_ms=5000)
    for number in range(10):
        for _ in range(20):
            sticky.send(topic, value=b"sticky %d" % number)
        sticky.flush()
    sticky.close()
    with reader_of(broker, topic, partitions) as client:
        found = take(client, (2 * partitions + 1) * each)
    counts = {
        kind: Counter(partition for partition, _, _, value in found if value == kind)
        for kind in {value for *_, value in found}
    }
    assert counts[b"turn"] == dict.fromkeys(range(partitions), each)
    assert set(counts[b"chance"]) == set(range(partitions))
    assert all(each / 2 < count < each * 2 for count in counts[b"chance"].values())
    for number in range(10):
        assert list(counts[b"sticky %d" % number].values()) == [20], "a batch goes to one partition"


# Reading.


@pytest.mark.lone_broker
def test_topics_are_kept_apart_and_cost_only_those_who_read_them(tmp_path: Path) -> None:
    with log_broker.embedded(data_dir=tmp_path / "data") as broker:
        sales, views = make(broker, "sales"), make(broker, "page_views")
        producer = producer_of(broker)
        for number in range(50):
            producer.produce(sales, value=b"sale %d" % number)
        assert producer.flush(30) == 0

        def sent_to_a_reader_of_sales() -> int:
            before = broker.node.counters.bytes_out
            with reader_of(broker, sales) as client:
                assert [value for *_, value in take(client, 50)] == [b"sale %d" % number for number in range(50)]
            return broker.node.counters.bytes_out - before

        alone = sent_to_a_reader_of_sales()
        for number in range(2000):
            producer.produce(views, value=b"view %d" % number * 50)
            producer.poll(0)
        assert producer.flush(30) == 0
        del producer
        assert sent_to_a_reader_of_sales() < alone + 20_000, "a million bytes of another topic are not its own"


def test_reading_starts_anywhere_and_leaves_no_trace(broker: Any) -> None:
    topic = make(broker, name("seek"))
    producer = producer_of(broker)
    for number in range(300):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(30) == 0
    group = name("nobody")
    with reader_of(broker, topic, offset=100, **{"group.id": group}) as client:
        assert [offset for _, offset, _, _ in take(client, 200)] == list(range(100, 300))
        client.seek(TopicPartition(topic, 0, 5))
        assert [offset for _, offset, _, _ in take(client, 20)] == list(range(5, 25))
        client.seek(TopicPartition(topic, 0, 250))
        assert [offset for _, offset, _, _ in take(client, 50)] == list(range(250, 300)), "one offset is looked up"
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    assert group not in {listed.group_id for listed in admin.list_consumer_groups().result(30).valid}
    with reader_of(broker, topic, **{"group.id": group}) as client:
        assert len(take(client, 300)) == 300, "nothing was acknowledged and nothing is gone"


def test_a_reader_decides_how_much_comes(broker: Any) -> None:
    topic = make(broker, name("limits"), 2)
    producer = producer_of(broker, **{"batch.num.messages": 1})
    for number in range(60):
        producer.produce(topic, value=bytes(1000), partition=number % 2)
    assert producer.flush(30) == 0
    settings = {"fetch.max.bytes": 3000, "max.partition.fetch.bytes": 1200, "message.max.bytes": 2500}
    with reader_of(broker, topic, 2, **settings, **{"queued.min.messages": 1, "fetch.queue.backoff.ms": 1}) as client:
        client.pause([TopicPartition(topic, 1)])
        assert {partition for partition, *_ in take(client, 30)} == {0}
        assert client.consume(1, 0.3) == []
        client.resume([TopicPartition(topic, 1)])
        assert {partition for partition, *_ in take(client, 30)} == {1}


@pytest.mark.lone_broker
def test_nothing_is_sent_to_who_did_not_ask(tmp_path: Path) -> None:
    with log_broker.embedded(data_dir=tmp_path / "data") as broker:
        topic = make(broker, "quiet")
        with reader_of(broker, topic) as client:
            producer = producer_of(broker)
            producer.produce(topic, value=b"first")
            assert producer.flush(30) == 0
            assert len(take(client, 1)) == 1
            client.pause([TopicPartition(topic, 0)])
            client.consume(1, 0.6)  # lets the fetch that waits come back
            fetches = broker.node.counters.requests[ApiKey.FETCH].count
            for number in range(100):
                producer.produce(topic, value=b"%d" % number)
            assert producer.flush(30) == 0
            assert client.consume(1, 0.3) == []
            assert broker.node.counters.requests[ApiKey.FETCH].count <= fetches + 1
            client.resume([TopicPartition(topic, 0)])
            assert len(take(client, 100)) == 100
        del producer


# Producing.


@pytest.mark.lone_broker
def test_batches_are_the_producers(tmp_path: Path) -> None:
    with log_broker.embedded(data_dir=tmp_path / "data") as broker:
        topic = make(broker, "batches", 2)
        filled = producer_of(broker, **{"batch.size": 4000, "linger.ms": 100})
        for number in range(400):
            filled.produce(topic, value=b"%100d" % number, partition=0)
        assert filled.flush(30) == 0
        before = broker.node.counters.requests[ApiKey.PRODUCE].count
        hasty = producer_of(broker, **{"linger.ms": 0, "batch.num.messages": 1})
        for number in range(50):
            hasty.produce(topic, value=b"%d" % number, partition=1)
        assert hasty.flush(30) == 0
        requests = broker.node.counters.requests[ApiKey.PRODUCE].count - before
        del filled, hasty
    batches = [header for _, header in batches_in((tmp_path / "data" / "batches-0" / f"{0:020d}.log").read_bytes())]
    assert max(header.size for header in batches) <= 4000 + 200, "batch.size, give or take a header"
    assert max(header.record_count for header in batches) > 10
    single = [header for _, header in batches_in((tmp_path / "data" / "batches-1" / f"{0:020d}.log").read_bytes())]
    assert [header.record_count for header in single] == [1] * 50
    assert requests == 50


def test_more_than_five_in_flight_are_for_those_who_do_not_ask_for_idempotence(broker: Any) -> None:
    settings = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6}
    with pytest.raises(KafkaException, match=r"max\.in\.flight"):
        producer_of(broker, **settings)
    topic = make(broker, name("flight"))
    producer = producer_of(broker, **{**settings, "enable.idempotence": False, "batch.num.messages": 1})
    for number in range(200):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(30) == 0
    with reader_of(broker, topic) as client:
        assert [value for *_, value in take(client, 200)] == [b"%d" % number for number in range(200)]


def test_retries_carry_a_producer_over_a_crash_in_order_and_once(own_broker: Any) -> None:
    topic, count = make(own_broker, "crash"), 3000
    failures: list[str] = []
    producer = producer_of(
        own_broker,
        **{
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 5,
            "batch.num.messages": 20,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 100,
        },
    )

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    for number in range(count):
        producer.produce(topic, value=b"%d" % number, on_delivery=delivered)
        if number in (count // 3, 2 * count // 3):
            producer.poll(0.05)
            own_broker.kill()
            own_broker.start()
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []
    with reader_of(own_broker, topic) as client:
        assert [value for *_, value in take(client, count)] == [b"%d" % number for number in range(count)]
    own_broker.kill()
    impatient = producer_of(own_broker, **{"retries": 0, "message.timeout.ms": 500})
    impatient.produce(topic, value=b"lost", on_delivery=delivered)
    assert impatient.flush(30) == 0
    assert len(failures) == 1, "without retries the application is told"
    own_broker.start()
    with reader_of(own_broker, topic) as client:
        assert client.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (0, count)
