"""
The publisher on a running cluster: what the log holds afterwards, whatever it held before.

FLUVIAL_TEST_BOOTSTRAP_SERVERS names another cluster of the Kafka protocol to run these tests against.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from fluvial.kafka import KafkaCluster
from fluvial.registry.client import RegisteredSchema
from fluvial.registry.errors import RegistryError
from fluvial.registry.formats.avro.parse import parse
from fluvial.registry.formats.avro.skip import compile_check
from fluvial.registry.formats.schema_kind import UndecodableError
from fluvial_demo.feeds import DAMAGED_EVENTS, Feed, all_feeds, contract_of
from fluvial_demo.placed_feed import PlacedFeed
from fluvial_demo.publish import Publisher
from fluvial_demo.topic_log import ForeignLogError, PublishError, StoredRecord, decided_ends
from log_broker.interfaces import Contract, Violation

SCHEMA_ID = 1
CONTRACT = contract_of("airline_operations", "flight_events")


class OneSchema:
    """A registry in which every contract has the same id."""

    def register(self, subject: str, contract: str) -> int:
        return SCHEMA_ID

    accepted: Mapping[bytes, None] = MappingProxyType({})

    keyless: Violation | None = None

    def __init__(self) -> None:
        self._check = compile_check(parse(CONTRACT).schema)

    def latest(self, subject: str) -> RegisteredSchema:
        return RegisteredSchema(subject=subject, version=1, id=SCHEMA_ID, schema=CONTRACT)

    def schema_by_id(self, schema_id: int) -> str:
        if schema_id != SCHEMA_ID:
            raise RegistryError("there is one schema", status=404, code=40403)
        return CONTRACT

    def check_of(self, contract: Contract) -> "OneSchema":
        """Judge records for the broker by the same schema."""
        return self

    def violation(self, datum: bytes | None) -> Violation | None:
        """Say so where a record is none of it."""
        if datum is None or datum[:5] != b"\0" + SCHEMA_ID.to_bytes(4, "big"):
            return Violation("not framed with the one schema")
        try:
            self._check(datum, 5)
        except UndecodableError as error:
            return Violation(str(error))
        return None


@pytest.fixture(scope="module")
def bootstrap_servers() -> Iterator[str]:
    given = os.environ.get("FLUVIAL_TEST_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    import log_broker

    with log_broker.embedded(validator=OneSchema()) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def publisher(bootstrap_servers: str) -> Iterator[Publisher]:
    with Publisher(KafkaCluster(bootstrap_servers), OneSchema()) as publisher:  # type: ignore[arg-type]
        yield publisher


@pytest.fixture
def feed_until(admin: AdminClient) -> Iterator[Callable[[int], Feed]]:
    """The flight events before a day of January, for a topic of this test."""
    topic = f"flights_{uuid.uuid4().hex[:12]}"

    def until(day: int) -> Feed:
        feed = next(feed for feed in all_feeds(datetime(2013, 1, day, tzinfo=UTC)) if feed.topic == "flight_events")
        return replace(feed, topic=topic)

    yield until
    if topic in admin.list_topics(timeout=30).topics:
        admin.delete_topics([topic])[topic].result(30)


def read_all(bootstrap_servers: str, topic: str, partitions: int) -> list[list[StoredRecord]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    log: list[list[StoredRecord]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    while len(ended) < partitions:
        for message in consumer.consume(1_000, timeout=1):
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
                continue
            timestamp_ms = message.timestamp()[1]
            record = StoredRecord(
                offset=message.offset(), key=message.key(), value=message.value(), timestamp_ms=timestamp_ms
            )
            log[message.partition()].append(record)
    consumer.close()
    return log


def assert_holds(log: list[list[StoredRecord]], feed: Feed) -> None:
    """The log has each record of the feed once, in order; those of the first day that were damaged stand behind it."""
    placed = PlacedFeed(feed, partitions=len(log), schema_id=SCHEMA_ID)
    assert [len(partition) for partition in log] == placed.ends
    parts = placed._partition_of.tolist()
    chunks = [record for chunk in placed.missing([0] * len(log)) for record in chunk]
    for part, partition in enumerate(log):
        here = [at for at in range(len(feed)) if parts[at] == part]
        first_day = [at for at in here if at < feed.first_day and at not in feed.damaged]
        repaired = [at for at in here if at in feed.damaged]
        expected = [chunks[at] for at in (*first_day, *repaired, *(at for at in here if at >= feed.first_day))]
        found = [(each.value, each.key, part, each.timestamp_ms) for each in partition]
        assert found == [tuple(each) for each in expected]
        gaps = {here.index(at) for at in repaired}
        assert gaps.isdisjoint(each.offset for each in partition)


def test_what_arrives_damaged_is_repaired_and_stands_behind_its_day(
    bootstrap_servers: str, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    published = publisher.publish(feed_until(3))
    assert len(published.repaired) == len(DAMAGED_EVENTS)
    assert len({each.reason for each in published.repaired}) == 3
    assert not publisher.publish(feed_until(3)).repaired
    log = read_all(bootstrap_servers, published.topic, 6)
    assert sum(each[-1].offset + 1 - len(each) for each in log) > len(DAMAGED_EVENTS), "gaps and markers"
    assert_holds(log, feed_until(3))


def test_every_event_is_published_once(
    bootstrap_servers: str, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    feed, heard = feed_until(3), []
    published = publisher.publish(feed, lambda held, records: heard.append((held, records)))
    assert (published.held, published.sent) == (0, len(feed))
    assert heard[-1] == (len(feed), len(feed))
    assert all(before <= after for before, after in pairwise(heard))
    assert_holds(read_all(bootstrap_servers, feed.topic, feed.partitions), feed)


def test_a_second_time_publishes_nothing(publisher: Publisher, feed_until: Callable[[int], Feed]) -> None:
    feed = feed_until(3)
    publisher.publish(feed)
    again = publisher.publish(feed)
    assert (again.held, again.sent) == (len(feed), 0)


def test_an_unfinished_log_is_completed(
    bootstrap_servers: str, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    publisher.publish(feed_until(2))
    with Publisher(KafkaCluster(bootstrap_servers), OneSchema()) as another:  # type: ignore[arg-type]
        published = another.publish(feed_until(4))
    assert published.held == len(feed_until(2))
    assert_holds(read_all(bootstrap_servers, published.topic, feed_until(4).partitions), feed_until(4))


def test_a_log_that_goes_on_past_the_feed_is_left_alone(
    bootstrap_servers: str, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    publisher.publish(feed_until(4))
    assert publisher.publish(feed_until(2)).sent == 0
    assert_holds(read_all(bootstrap_servers, feed_until(2).topic, feed_until(2).partitions), feed_until(4))


def test_a_topic_keeps_the_partitions_it_has(
    bootstrap_servers: str, admin: AdminClient, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    feed = feed_until(2)
    admin.create_topics([NewTopic(feed.topic, num_partitions=2)])[feed.topic].result(30)
    publisher.publish(feed)
    whole = replace(feed, damaged=frozenset())  # a topic that takes everything gets nothing damaged
    assert_holds(read_all(bootstrap_servers, feed.topic, 2), whole)


def test_records_of_somebody_else_stop_it_before_it_writes(
    bootstrap_servers: str, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    feed = feed_until(2)
    publisher.publish(feed)
    stranger = Producer({"bootstrap.servers": bootstrap_servers})
    stranger.produce(feed.topic, b"\0" + SCHEMA_ID.to_bytes(4, "big") + b"something else", partition=1)
    stranger.flush(30)
    before = read_all(bootstrap_servers, feed.topic, feed.partitions)
    with pytest.raises(ForeignLogError, match=f"topic {feed.topic} partition 1 "):
        publisher.publish(feed_until(4))
    assert read_all(bootstrap_servers, feed.topic, feed.partitions) == before


def test_a_refused_record_is_an_error(
    admin: AdminClient, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    feed = feed_until(2)
    small = NewTopic(feed.topic, num_partitions=1, config={"max.message.bytes": "100"})
    admin.create_topics([small])[feed.topic].result(30)
    with pytest.raises(PublishError, match="refused a record"):
        publisher.publish(feed)


def test_a_new_topic_keeps_its_records_for_ever(
    admin: AdminClient, publisher: Publisher, feed_until: Callable[[int], Feed]
) -> None:
    feed = replace(feed_until(2), compacted=True)
    # Flights repeat their keys; only the settings of the topic are looked at.
    publisher.publish(replace(feed, records=feed.records.head(0), timestamps=feed.timestamps[:0], rows=feed.rows[:0]))
    resource = ConfigResource(ResourceType.TOPIC, feed.topic)
    config = admin.describe_configs([resource])[resource].result(30)
    assert (config["retention.ms"].value, config["cleanup.policy"].value) == ("-1", "compact")


def test_an_end_is_told_once_every_transaction_is_decided(bootstrap_servers: str) -> None:
    """What was replayed in a transaction moves the end once more, by its marker."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topic = f"decided-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"repaired")
    producer.flush(30)
    with ThreadPoolExecutor(1) as aside:
        ends = aside.submit(decided_ends, admin, topic, 1)
        time.sleep(0.5)
        assert not ends.done(), "it waits for the transaction"
        producer.commit_transaction(30)
        assert ends.result(30) == [2]
