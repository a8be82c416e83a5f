"""
The shapes of OpenMessaging Benchmark's workloads, each named as its file in that project's `workloads/` folder is.

A shape is what such a file says: topics, partitions, size of a message, producers, consumers. What makes the load is
ours, librdkafka with the settings of its driver for Kafka. Minutes are seconds here, and a fixed rate is one that both
brokers carry on two cores that they share with their clients.
"""

from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.bench.broker.arena import Arena, Side
from tests.bench.broker.measuring import Sample, admin_of
from tests.bench.broker.rows import Row
from tests.bench.broker.servers import Broker
from tests.bench.drivers.sides import compared

OFFSETS = "__consumer_offsets"
SYNC_SETTING = {"ours": "fluvial.durability", "Kafka": "flush.messages"}
LOAD = "tests.bench.drivers.openmessaging_load"
SECONDS = 4.0


class Shape(NamedTuple):
    """A workload of one topic and one subscription; `rate` is in messages a second, 0 for as many as go."""

    name: str
    partitions: int
    message_bytes: int
    producers: int
    consumers: int
    rate: int


FIXED_RATE = (
    Shape("simple-workload", 10, 1024, 1, 1, 10_000),
    Shape("1-topic-1-partition-100b", 1, 100, 1, 1, 10_000),
    Shape("1-topic-16-partitions-1kb", 16, 1024, 1, 1, 10_000),
    Shape("1-topic-100-partitions-1kb-4p-4c-200k", 100, 1024, 4, 4, 10_000),
)
MAX_RATE = (
    Shape("max-rate-1-topic-1-partition-1p-1c-1kb", 1, 1024, 1, 1, 0),
    Shape("max-rate-1-topic-1-partition-1p-1c-100b", 1, 100, 1, 1, 0),
    Shape("max-rate-1-topic-100-partitions-1p-1c-1kb", 100, 1024, 1, 1, 0),
)


def fixed_rate(arena: Arena) -> list[Row]:
    """Latencies at a rate that both carry."""
    return [row for shape in FIXED_RATE for row in _rows(arena, "fixed-rate", shape)]


def max_rate(arena: Arena) -> list[Row]:
    """As much as the broker takes from producers that never pause."""
    return [row for shape in MAX_RATE for row in _rows(arena, "max-rate", shape)]


def _rows(arena: Arena, group: str, shape: Shape) -> list[Row]:
    def run(broker: Broker, side: Side) -> Sample:
        sync_commits(broker, side)
        load = {**shape._asdict(), "seconds": arena.scale.seconds(SECONDS)}
        return arena.produce(broker, side, LOAD, load, partitions=shape.partitions)

    pace = f", {shape.rate:,}/s" if shape.rate else ""
    return compared(arena, group, f"{shape.name}{pace}", run)


def sync_commits(broker: Broker, side: Side) -> None:
    """Have commits, of which each poll makes one, be as durable as the messages of this side."""
    name = SYNC_SETTING[side.broker]
    set_for_commits(broker, name, dict(side.config).get(name))


def set_for_commits(broker: Broker, name: str, value: str | None) -> None:
    """Set a config of the topic that commits are kept in, or with None have the default again."""
    asking = Consumer({"bootstrap.servers": broker.address, "group.id": "bench", "log_level": 2})
    asking.committed([TopicPartition("first-record", 0)], timeout=60)  # who asks first has the topic made
    asking.close()
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS, incremental_configs=[entry])
    admin = admin_of(broker)  # kept until the answer has come
    admin.incremental_alter_configs([resource])[resource].result(60)
