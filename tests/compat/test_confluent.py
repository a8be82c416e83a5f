"""librdkafka, by way of confluent-kafka: producer, consumer group, admin."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat_cluster import BROKERS, COPIES
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from secured import librdkafka


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def admin(broker: Any) -> AdminClient:
    return AdminClient(librdkafka(broker.bootstrap_servers))


def create(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, COPIES, config=settings)])[topic].result(30)


def send(bootstrap_servers: str, topic: str, count: int, **config: Any) -> list[tuple[int, int]]:
    """Produce `count` records and return where each was put."""
    places: list[tuple[int, int]] = []
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            places.append((message.partition(), message.offset()))

    producer = Producer({**librdkafka(bootstrap_servers), "partitioner": "murmur2_random", **config})
    for number in range(count):
        producer.produce(topic, key=str(number), value=f"value {number}", on_delivery=delivered)
    assert producer.flush(60) == 0
    assert not failures
    return places


@contextlib.contextmanager
def consumer(bootstrap_servers: str, group: str, **config: Any) -> Iterator[Consumer]:
    client = Consumer(
        {
            **librdkafka(bootstrap_servers),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    try:
        yield client
    finally:
        client.close()


def read(client: Consumer, count: int) -> list[str]:
    values: list[str] = []
    for _ in range(120):
        for message in client.consume(count, 0.5):
            assert message.error() is None, message.error()
            values.append(message.value().decode())
        if len(values) >= count:
            break
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker: Any, admin: AdminClient, codec: str) -> None:
    topic = name("roundtrip")
    create(admin, topic, 3)
    places = send(broker.bootstrap_servers, topic, 500, **{"enable.idempotence": True, "compression.type": codec})
    assert len(set(places)) == 500
    with consumer(broker.bootstrap_servers, name("group")) as client:
        client.subscribe([topic])
        assert sorted(read(client, 500)) == sorted(f"value {number}" for number in range(500))


def test_a_group_goes_on_where_it_committed(broker: Any, admin: AdminClient) -> None:
    topic, group = name("resume"), name("group")
    create(admin, topic)
    send(broker.bootstrap_servers, topic, 10)
    with consumer(broker.bootstrap_servers, group) as first:
        first.subscribe([topic])
        assert len(read(first, 10)) == 10
        first.commit(offsets=[TopicPartition(topic, 0, 4, "why four")], asynchronous=False)
    with consumer(broker.bootstrap_servers, group) as second:
        (committed,) = second.committed([TopicPartition(topic, 0)], 30)
        assert (committed.offset, committed.metadata) == (4, "why four")
        second.subscribe([topic])
        assert read(second, 6) == [f"value {number}" for number in range(4, 10)]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions(
    broker: Any, admin: AdminClient, eventually: Callable[[Callable[[], bool]], None], assignor: str
) -> None:
    topic, group = name("shared"), name("group")
    create(admin, topic, 4)
    settings = {"partition.assignment.strategy": assignor}
    with consumer(broker.bootstrap_servers, group, **settings) as one:
        one.subscribe([topic])

        def owned(client: Consumer) -> set[int]:
            client.poll(0.05)
            return {place.partition for place in client.assignment()}

        eventually(lambda: len(owned(one)) == 4)
        with consumer(broker.bootstrap_servers, group, **settings) as two:
            two.subscribe([topic])
            eventually(lambda: (len(owned(one)), len(owned(two))) == (2, 2))
            assert owned(one) | owned(two) == {0, 1, 2, 3}
        eventually(lambda: len(owned(one)) == 4)


def test_a_static_member_returns_without_a_rebalance(
    broker: Any, admin: AdminClient, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    topic, group = name("static"), name("group")
    create(admin, topic, 2)
    settings = {"group.instance.id": "only one", "session.timeout.ms": 30_000}

    def assigned(client: Consumer) -> bool:
        client.poll(0.05)
        return len(client.assignment()) == 2

    def member() -> tuple[str, str]:
        description = admin.describe_consumer_groups([group])[group].result(30)
        (found,) = description.members
        return found.member_id, description.state.name

    with consumer(broker.bootstrap_servers, group, **settings) as first:
        first.subscribe([topic])
        eventually(lambda: assigned(first))
        before, _ = member()
    with consumer(broker.bootstrap_servers, group, **settings) as second:
        second.subscribe([topic])
        eventually(lambda: assigned(second))
        after, state = member()
    assert before != after
    assert state == "STABLE"


def test_topics_are_created_described_grown_and_deleted(broker: Any, admin: AdminClient) -> None:
    topic = name("life")
    create(admin, topic, 2, retention_ms="1234567")
    (described,) = (future.result(30) for future in admin.describe_topics(TopicCollection([topic])).values())
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 2, False)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    assert len(admin.list_topics(topic, 30).topics[topic].partitions) == 5
    send(broker.bootstrap_servers, topic, 50)
    admin.delete_topics([topic])[topic].result(30)
    assert topic not in admin.list_topics(timeout=30).topics
    create(admin, topic, 1)
    with consumer(broker.bootstrap_servers, name("group")) as client:
        assert client.get_watermark_offsets(TopicPartition(topic, 0), 30) == (0, 0)


@pytest.mark.parametrize(
    ("topic", "partitions", "factor", "config", "code"),
    [
        ("a b", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("..", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("x" * 250, 1, 1, {}, "TOPIC_EXCEPTION"),
        ("rf", 1, BROKERS + 1, {}, "INVALID_REPLICATION_FACTOR"),
        ("config", 1, 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("config", 1, 1, {"no.such.thing": "1"}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    admin: AdminClient, topic: str, partitions: int, factor: int, config: dict[str, str], code: str
) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(topic, partitions, factor, config=config)])[topic].result(30)
    assert refused.value.args[0].name() == code


def test_configs_are_reported_with_their_source_and_changed_live(
    broker: Any, admin: AdminClient, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    topic = name("configs")
    create(admin, topic, 1, max_message_bytes="2000")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(30)
    assert (entries["max.message.bytes"].value, entries["max.message.bytes"].source) == ("2000", 1)
    assert (entries["retention.ms"].is_default, entries["fluvial.durability"].value) == (True, "fsync-quorum")
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("max.message.bytes", "200", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(30)

    def value(config: str) -> str:
        told: str = admin.describe_configs([resource])[resource].result(30)[config].value
        return told

    producer = Producer(librdkafka(broker.bootstrap_servers))

    def refused() -> bool:
        errors: list[Any] = []
        producer.produce(topic, key="k", value=b"x" * 1000, on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
        return [error and error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]

    # Of several brokers one may be asked that has not replayed the change yet.
    eventually(lambda: value("cleanup.policy") == "delete,compact")
    eventually(refused)


def test_a_brokers_configs_are_reported_and_changed(admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, "0")
    entries = admin.describe_configs([resource])[resource].result(30)
    assert entries["group.min.session.timeout.ms"].value == "1000"
    assert entries["group.min.session.timeout.ms"].source == 4
    assert entries["log.retention.ms"].is_default


def test_groups_are_listed_described_altered_and_deleted(broker: Any, admin: AdminClient) -> None:
    topic, group = name("groups"), name("group")
    create(admin, topic, 2)
    send(broker.bootstrap_servers, topic, 10)
    with consumer(broker.bootstrap_servers, group) as client:
        client.subscribe([topic])
        read(client, 10)
        client.commit(asynchronous=False)
        described = admin.describe_consumer_groups([group])[group].result(30)
        assert described.state.name == "STABLE"
        assert len(described.members[0].assignment.topic_partitions) == 2
        with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups([group])[group].result(30)
    listed = admin.list_consumer_groups().result(30)
    assert group in {found.group_id for found in listed.valid}
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([wanted])[group].result(30)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    assert {place.partition: place.offset for place in found.topic_partitions}[0] == 3
    admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(KafkaException):
        admin.delete_consumer_groups([group])[group].result(30)


def test_offsets_are_found_by_time_and_records_deleted(broker: Any, admin: AdminClient) -> None:
    topic = name("front")
    create(admin, topic)
    send(broker.bootstrap_servers, topic, 10)
    place = TopicPartition(topic, 0)
    assert admin.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset == 10
    assert admin.list_offsets({place: OffsetSpec.for_timestamp(0)})[place].result(30).offset == 0
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(deleted.values())).result(30).low_watermark == 4
    assert admin.list_offsets({place: OffsetSpec.earliest()})[place].result(30).offset == 4


def test_nothing_committed_or_given_out_is_lost_by_a_kill(own_broker: Any) -> None:
    topic, group = name("killed"), name("group")
    address = own_broker.bootstrap_servers
    admin = AdminClient(librdkafka(address))
    create(admin, topic)
    places = send(address, topic, 100, **{"enable.idempotence": True})
    with consumer(address, group) as client:
        client.commit(offsets=[TopicPartition(topic, 0, 42)], asynchronous=False)
    own_broker.kill()
    own_broker.start()
    with consumer(address, group) as client:
        assert client.committed([TopicPartition(topic, 0)], 30)[0].offset == 42
        client.assign([TopicPartition(topic, 0, 0)])
        assert len(read(client, 100)) == 100
    assert len(set(places) | set(send(address, topic, 100, **{"enable.idempotence": True}))) == 200


def test_a_share_consumer_is_told_that_there_are_no_share_groups(broker: Any, admin: AdminClient) -> None:
    topic = name("shared")
    create(admin, topic)
    consumer = ShareConsumer({**librdkafka(broker.bootstrap_servers), "group.id": name("sharers")})
    try:
        consumer.subscribe([topic])
        with pytest.raises(KafkaException) as told:
            consumer.poll(60)
    finally:
        consumer.close()
    error: KafkaError = told.value.args[0]
    assert error.fatal()
    assert "ShareGroupHeartbeat" in error.str()
