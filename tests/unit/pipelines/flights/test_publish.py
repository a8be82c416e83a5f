"""
The publisher on a running cluster: what the log holds afterwards, whatever it held before.

FLUVIAL_TEST_BOOTSTRAP_SERVERS names another cluster of the Kafka protocol to run these tests against.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from pipelines.flights.feeds import Feed, all_feeds
from pipelines.flights.placed_feed import PlacedFeed
from pipelines.flights.publish import Publisher
from pipelines.flights.topic_log import ForeignLogError, PublishError, StoredRecord

SCHEMA_ID = 1


class OneSchema:
    """A registry in which every contract has the same id."""

    def register(self, subject: str, contract: str) -> int:
        return SCHEMA_ID

    def refuse_reason(self, topic: str, *, is_key: bool, level: str, payload: bytes | memoryview | None) -> str | None:
        """Judge a record for the broker by the same id."""
        frame = b"\0" + SCHEMA_ID.to_bytes(4, "big")
        return None if payload is not None and bytes(payload[:5]) == frame else "not framed with the one schema"


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
    with Publisher(bootstrap_servers, OneSchema()) as publisher:  # type: ignore[arg-type]
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
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "test", "enable.auto.commit": False})
    whole = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
    left = sum(consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in whole)
    consumer.assign(whole)
    log: list[list[StoredRecord]] = [[] for _ in whole]
    while left:
        for message in consumer.consume(left, timeout=1):
            assert message.error() is None
            timestamp_ms = message.timestamp()[1]
            record = StoredRecord(
                offset=message.offset(), key=message.key(), value=message.value(), timestamp_ms=timestamp_ms
            )
            log[message.partition()].append(record)
            left -= 1
    consumer.close()
    return log


def assert_holds(log: list[list[StoredRecord]], feed: Feed) -> None:
    placed = PlacedFeed(feed, partitions=len(log), schema_id=SCHEMA_ID)
    assert [len(partition) for partition in log] == placed.ends
    records = {(part, record.offset): record for part, partition in enumerate(log) for record in partition}
    offsets = [0] * len(log)
    for chunk in placed.missing(offsets):
        for value, key, part, timestamp_ms in chunk:
            offset = offsets[part]
            expected = StoredRecord(offset=offset, key=key, value=value, timestamp_ms=timestamp_ms)
            assert records[part, offset] == expected
            offsets[part] += 1


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
    with Publisher(bootstrap_servers, OneSchema()) as another:  # type: ignore[arg-type]
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
    assert_holds(read_all(bootstrap_servers, feed.topic, 2), feed)


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
