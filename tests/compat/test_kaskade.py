"""kaskade: the list of topics and the records of one, as its window shows them."""

import uuid
from typing import Any

import kaskade_program
import pytest
from compat_cluster import COPIES
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from secured import librdkafka

pytestmark = pytest.mark.compat_long


def test_it_lists_topics_and_shows_records(broker: Any) -> None:
    servers, topic = broker.bootstrap_servers, f"kaskade-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(librdkafka(servers))
    admin.create_topics([NewTopic(topic, 2, COPIES)])[topic].result(30)
    producer = Producer(librdkafka(servers))
    sent = [(f"key {number}", f"value {number}", str(number % 2), str(number // 2)) for number in range(6)]
    for key, value, partition, _ in sent:
        producer.produce(topic, value, key, partition=int(partition))
    assert producer.flush(30) == 0
    listed = {row[0]: row for row in kaskade_program.table_of(servers, 1, "admin")}
    assert listed[topic][1] == "2"  # partitions
    shown = kaskade_program.table_of(
        servers, len(sent), "consumer", "-t", topic, "--earliest", "-k", "string", "-v", "string"
    )
    assert sorted((row[0], row[1], row[4], row[5]) for row in shown) == sorted(sent)
