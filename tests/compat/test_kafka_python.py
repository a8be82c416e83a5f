"""kafka-python: its own encoders, group protocol and admin client."""

import uuid
import warnings
from typing import Any

import pytest
from compat_cluster import BROKERS, COPIES
from secured import kafka_python

import log_broker

with warnings.catch_warnings():
    # It reads its schemas by a function that the standard library is about to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_producer_and_group_consumer(broker: Any, codec: str | None) -> None:
    topic, group = name("kafka-python"), name("group")
    producer = KafkaProducer(**kafka_python(broker.bootstrap_servers), acks="all", compression_type=codec)
    for number in range(200):
        producer.send(topic, key=str(number).encode(), value=f"value {number}".encode())
    producer.flush()
    producer.close()
    settings = {**kafka_python(broker.bootstrap_servers), "group_id": group, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(topic, enable_auto_commit=False, consumer_timeout_ms=30_000, **settings)
    values = [next(consumer).value.decode() for _ in range(200)]
    assert values == [f"value {number}" for number in range(200)]
    consumer.commit()
    consumer.close()
    late = KafkaConsumer(enable_auto_commit=False, **settings)
    assert late.committed(TopicPartition(topic, 0)) == 200
    late.close()


def test_admin_makes_describes_and_removes_a_topic(broker: Any) -> None:
    topic = name("admin")
    admin = KafkaAdminClient(**kafka_python(broker.bootstrap_servers))
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=COPIES)])
    (described,) = admin.describe_topics([topic])
    assert len(described["partitions"]) == 3
    assert admin.describe_cluster()["controller_id"] in range(BROKERS)
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    admin.close()


def test_a_consumer_reads_in_one_fetch_session() -> None:
    with log_broker.embedded(num_partitions="5") as own:
        producer = KafkaProducer(**kafka_python(own.bootstrap_servers), acks="all")
        consumer = KafkaConsumer(
            **kafka_python(own.bootstrap_servers), auto_offset_reset="earliest", consumer_timeout_ms=30_000
        )
        producer.send("sessions", partition=0, value=b"first").get()
        consumer.assign([TopicPartition("sessions", partition) for partition in range(5)])
        assert next(consumer).value == b"first"
        (session,) = own.node.fetch_sessions._sessions.values()
        for number in range(20):
            producer.send("sessions", partition=number % 5, value=b"%d" % number).get()
            record = next(consumer)
            assert (record.partition, record.value) == (number % 5, b"%d" % number)
        assert [*own.node.fetch_sessions._sessions.values()] == [session]
        assert len(session.partitions) == 5
        assert session.epoch > 20
        consumer.close()
        producer.close()
