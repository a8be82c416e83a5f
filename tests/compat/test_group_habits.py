"""How members of a group come, work, fall silent and go: what the group makes of it, seen with librdkafka."""

import asyncio
import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AssignedPlace
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from secured import aiokafka, kafka_python, librdkafka

import log_broker
from fluvial.testing import SimulatedCluster, simulate
from log_broker.core.groups.records import OffsetKey, decode_key, decode_offset
from log_broker.errors import ErrorCode
from log_broker.server.embedded import EmbeddedBroker
from log_broker.server.net.peers import PeerLink
from log_broker.wire.apis import ApiKey

with warnings.catch_warnings():
    # It reads its schemas by a function that the standard library is about to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Place

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SESSION_MS = 1000
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedBroker]:
    """A broker that lets sessions be short."""
    with log_broker.embedded(group_min_session_timeout_ms=100) as running:
        yield running


def send(broker: EmbeddedBroker, topic: str, values: list[str], *, partitions: int = 1, **settings: Any) -> None:
    producer = Producer({**librdkafka(broker.bootstrap_servers), "log_level": 0, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(30) == 0


@contextlib.contextmanager
def member(broker: EmbeddedBroker, group: str, topic: str, **settings: Any) -> Iterator[Any]:
    """A member, and what it was told: `assigned` and `revoked` are lists of partitions, in the order of the news."""
    said = SimpleNamespace(assigned=[], revoked=[])
    client = Consumer(
        {
            **librdkafka(broker.bootstrap_servers),
            "group.id": group,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            "max.poll.interval.ms": 60_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )

    def assigned(_: Consumer, places: list[TopicPartition]) -> None:
        said.assigned += [place.partition for place in places]

    def revoked(_: Consumer, places: list[TopicPartition]) -> None:
        said.revoked += [place.partition for place in places]

    client.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    try:
        yield SimpleNamespace(client=client, said=said)
    finally:
        client.close()


def values_of(member: Any, count: int) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, found
        message = member.client.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
    return found


def poll_until(condition: Any, *members: Any) -> list[str]:
    """Poll all until a condition holds; return what they read."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        for each in members:
            message = each.client.poll(0.02)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
    return found


def described(broker: EmbeddedBroker, group: str) -> Any:
    admin = AdminClient({**librdkafka(broker.bootstrap_servers), "log_level": 0})
    return admin.describe_consumer_groups([group])[group].result(30)


def test_who_subscribes_names_a_group_and_who_assigns_need_not(embedded: EmbeddedBroker) -> None:
    topic = embedded.unique_topic()
    send(embedded, topic, ["a"])
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        Consumer(librdkafka(embedded.bootstrap_servers))

    async def join_without_a_name() -> int:
        link = PeerLink(embedded.bootstrap_servers)
        protocol = {"name": "range", "metadata": b""}
        asked = {"group_id": "", "session_timeout": SESSION_MS, "rebalance_timeout": SESSION_MS, "member_id": ""}
        values = {**asked, "group_instance_id": None, "protocol_type": "consumer", "protocols": (protocol,)}
        answer = await link.ask(ApiKey.JOIN_GROUP, 5, values)
        link.close()
        return int(answer.error_code)

    assert asyncio.run(join_without_a_name()) == ErrorCode.INVALID_GROUP_ID
    alone = KafkaConsumer(**kafka_python(embedded.bootstrap_servers), auto_offset_reset="earliest")
    alone.assign([Place(topic, 0)])
    assert [record.value for record in next(iter(alone.poll(30_000).values()))] == [b"a"]
    alone.close()


def test_an_idle_member_that_sends_heartbeats_stays() -> None:
    """In virtual time: it does not poll for ten sessions, and goes on as if it had."""

    async def scenario(cluster: SimulatedCluster) -> tuple[list[bytes | None], int]:
        await cluster.create_topic("t")
        producer = AIOKafkaProducer(**aiokafka(cluster.bootstrap_servers))
        await producer.start()
        for value in (b"a", b"b"):
            await producer.send_and_wait("t", value)
        await producer.stop()
        idle = AIOKafkaConsumer(
            "t",
            **aiokafka(cluster.bootstrap_servers),
            group_id="idle",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=2_000,
            max_poll_interval_ms=300_000,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await idle.start()
        try:
            first = (await idle.getone()).value
            generation = idle._coordinator.generation
            await asyncio.sleep(60)
            second = (await idle.getone()).value
            await idle.commit()
            assert idle._coordinator.generation == generation, "nobody has noticed anything"
            return [first, second], await idle.committed(AssignedPlace("t", 0)) or 0
        finally:
            await idle.stop()

    assert simulate(scenario, brokers=1) == ([b"a", b"b"], 2)


def test_a_member_that_does_not_poll_any_more_is_let_go_and_its_commit_refused(embedded: EmbeddedBroker) -> None:
    """Its heartbeats go on: what it stands for is a handler that never ends."""
    topic = embedded.unique_topic(partitions=2)
    send(embedded, topic, ["a", "b"], partitions=2)
    with (
        member(embedded, "locked", topic, max_poll_interval_ms=SESSION_MS) as stuck,
        member(embedded, "locked", topic) as healthy,
    ):
        poll_until(lambda: len(stuck.client.assignment()) == len(healthy.client.assignment()) == 1, stuck, healthy)
        (held,) = stuck.client.assignment()
        poll_until(lambda: len(healthy.client.assignment()) == 2, healthy)
        assert healthy.said.revoked, "the others are told of the rebalance"
        assert held.partition in healthy.said.assigned
        (left,) = described(embedded, "locked").members
        assert sorted(place.partition for place in left.assignment.topic_partitions) == [0, 1]
        with pytest.raises(KafkaException) as refused:
            stuck.client.commit(offsets=[TopicPartition(topic, held.partition, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        found = healthy.client.committed([TopicPartition(topic, held.partition)], 30)
        assert found[0].offset < 0, "nothing of it counts"


def test_the_next_member_goes_on_where_one_that_leaves_has_stopped(embedded: EmbeddedBroker) -> None:
    topic = embedded.unique_topic(partitions=2)
    values = [str(number) for number in range(40)]
    send(embedded, topic, values, partitions=2)
    with member(embedded, "leaving", topic) as first:
        read = values_of(first, 25)
        first.client.commit(asynchronous=False)
    with member(embedded, "leaving", topic) as second:
        rest = values_of(second, 15)
        assert sorted(read + rest) == sorted(values), "none twice, none left out"


def test_members_have_equal_shares_of_the_records_and_all_of_them_together(embedded: EmbeddedBroker) -> None:
    topic, each = embedded.unique_topic(partitions=9), 30
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(member(embedded, "billing", topic)) for _ in range(3)]
        poll_until(lambda: [len(each.client.assignment()) for each in members] == [3, 3, 3], *members)
        send(embedded, topic, [str(number) for number in range(9 * each)], partitions=9)
        shares = [values_of(one, 3 * each) for one in members]
    assert Counter(value for share in shares for value in share) == Counter(map(str, range(9 * each)))


def test_neither_side_knows_who_stands_on_the_other(embedded: EmbeddedBroker) -> None:
    """Readers come and go and writers change their names; nobody else is told, set or disturbed."""
    topic = embedded.unique_topic()
    with member(embedded, "first", topic) as first:
        send(embedded, topic, ["1"], **{"client.id": "shop"})
        assert values_of(first, 1) == ["1"]
        with member(embedded, "second", topic) as second:
            send(embedded, topic, ["2"], **{"client.id": "another-shop"})
            assert values_of(second, 2) == ["1", "2"]
        send(embedded, topic, ["3"], **{"client.id": "shop"})
        assert values_of(first, 2) == ["2", "3"]
        assert first.said.assigned == [0]
        assert first.said.revoked == []


def test_live_hourly_and_nightly_readers_share_a_topic(embedded: EmbeddedBroker) -> None:
    topic = embedded.unique_topic()
    hours: list[list[str]] = []
    with member(embedded, "live", topic) as live:
        for hour in range(3):
            values = [f"{hour}:{minute}" for minute in range(20)]
            send(embedded, topic, values)
            assert values_of(live, 20) == values
            with member(embedded, "hourly", topic) as hourly:
                hours.append(values_of(hourly, 20))
                hourly.client.commit(asynchronous=False)
    with member(embedded, "nightly", topic) as nightly:
        night = values_of(nightly, 60)
    assert night == [f"{hour}:{minute}" for hour in range(3) for minute in range(20)]
    assert [value for hour in hours for value in hour] == night


def test_committed_offsets_stand_in_a_compacted_topic_that_can_be_read(embedded: EmbeddedBroker) -> None:
    topic = embedded.unique_topic()
    send(embedded, topic, ["a", "b"])
    with member(embedded, "auditable", topic) as one:
        values_of(one, 2)
        one.client.commit(asynchronous=False)
    admin = AdminClient({**librdkafka(embedded.bootstrap_servers), "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
    assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"
    partitions = admin.list_topics(timeout=30).topics["__consumer_offsets"].partitions
    reader = Consumer(
        {
            **librdkafka(embedded.bootstrap_servers),
            "group.id": "auditor",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition("__consumer_offsets", number, 0) for number in partitions])
    found: dict[tuple[str, str, int], int] = {}
    ended = 0
    while ended < len(partitions):
        for message in reader.consume(100, 10):
            if message.error() is not None:
                ended += message.error().code() == KafkaError._PARTITION_EOF
                continue
            key = decode_key(message.key())
            if isinstance(key, OffsetKey) and message.value() is not None:
                found[key.group, key.topic, key.partition] = decode_offset(message.value()).offset
    reader.close()
    assert found["auditable", topic, 0] == 2


def test_each_customer_is_one_members_and_a_join_within_members_is_the_whole_join(embedded: EmbeddedBroker) -> None:
    """Views and purchases by customer: equal partition counts and the range assignor bring both to one member."""
    views, purchases = embedded.unique_topic("views", partitions=6), embedded.unique_topic("purchases", partitions=6)
    seen = [(f"c{number % 17}", f"page {number % 7}") for number in range(120)]
    bought = [(f"c{number % 11}", f"thing {number}") for number in range(40)]
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(member(embedded, views, views, partition_assignment_strategy="range")) for _ in range(3)
        ]
        clients = [each.client for each in members]
        for client in clients:
            client.subscribe([views, purchases])
        poll_until(lambda: [len(client.assignment()) for client in clients] == [4, 4, 4], *members)
        for client in clients:
            places = {(place.topic, place.partition) for place in client.assignment()}
            assert {number for topic, number in places if topic == views} == {
                number for topic, number in places if topic == purchases
            }
        producer = Producer({**librdkafka(embedded.bootstrap_servers), "log_level": 0})
        for topic, events in ((views, seen), (purchases, bought)):
            for customer, what in events:
                producer.produce(topic, what, customer)
        assert producer.flush(30) == 0
        found: list[list[tuple[str, str, str]]] = [[] for _ in members]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(map(len, found)) < len(seen) + len(bought):
            assert time.monotonic() < deadline, found
            for client, events in zip(clients, found, strict=True):
                message = client.poll(0.01)
                if message is not None and message.error() is None:
                    events.append((message.topic(), message.key().decode(), message.value().decode()))
    customers = [{customer for _, customer, _ in events} for events in found]
    assert sum(map(len, customers)) == len(set.union(*customers)) == 17, "nobody is with two members"
    joined = [
        (customer, page, thing)
        for events in found
        for topic, customer, page in events
        for other, buyer, thing in events
        if (topic, other, buyer) == (views, purchases, customer)
    ]
    assert sorted(joined) == sorted((c, page, thing) for c, page in seen for buyer, thing in bought if buyer == c)
