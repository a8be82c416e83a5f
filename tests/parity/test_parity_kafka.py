"""
Our broker beside a running Apache Kafka: the same settings and defaults, and the same answers.

With FLUVIAL_TEST_KAFKA=1 a Kafka is started and asked; without, our broker is held to what it answered.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
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

import log_broker
from log_broker.config.broker import BROKER_ALIASES, BROKER_KEYS
from log_broker.config.topic_keys import TOPIC_KEYS, broker_name
from tests.free_ports import free_ports
from tests.peers.kafka_jars import lacking, run_kafka, start_kafka

WITH_KAFKA = pytest.mark.skipif(
    "FLUVIAL_TEST_KAFKA" not in os.environ or lacking() is not None,
    reason=lacking() or "starts a Kafka, which takes ten seconds and a gigabyte: FLUVIAL_TEST_KAFKA=1",
)

# Kafka's settings of topics that belong to features that are not here; setting one is refused.
NOT_HERE = {
    "local.retention.bytes",
    "local.retention.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
}
# What Kafka leaves out when it describes a broker: settings of its authorizer, those that are only set while it runs,
# one that it has and hides, and those of a registry.
NOT_DESCRIBED = {
    "super.users",
    "allow.everyone.if.no.acl.found",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "leader.imbalance.per.broker.percentage",
    "access.control.allow.origin",
    "access.control.allow.methods",
    "access.control.allow.headers",
}
OWN = ("fluvial.", "confluent.")  # the names of what Apache Kafka has no setting for
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Apache Kafka."""
    folder = tmp_path_factory.mktemp("kafka")
    port, controller = free_ports(2)
    properties = folder / "server.properties"
    properties.write_text(SETTINGS.format(port=port, controller=controller, data=folder / "data"))
    formatted = run_kafka(
        "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", properties, "--standalone"
    )
    assert formatted.returncode == 0, formatted.stderr
    process = start_kafka("kafka.Kafka", properties, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        deadline = time.monotonic() + 60
        while True:
            try:
                admin.list_topics(timeout=1)
                break
            except KafkaException:
                assert process.poll() is None, "it ended"
                assert time.monotonic() < deadline, "it did not start"
        del admin
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of ours."""
    with log_broker.embedded(data_dir=tmp_path_factory.mktemp("ours") / "data") as broker:
        yield broker.bootstrap_servers


def described(servers: str) -> tuple[dict[str, ConfigEntry], dict[str, ConfigEntry]]:
    """The settings of a new topic and of the broker."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topic = f"t-{uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    node = next(iter(admin.list_topics(timeout=10).brokers))
    resources = [ConfigResource(ResourceType.TOPIC, topic), ConfigResource(ResourceType.BROKER, str(node))]
    answers = admin.describe_configs(resources)
    return answers[resources[0]].result(30), answers[resources[1]].result(30)


@WITH_KAFKA
def test_names_and_defaults_are_kafkas(kafka: str, ours: str) -> None:
    theirs_of_topic, theirs_of_broker = described(kafka)
    ours_of_topic, _ = described(ours)
    assert set(theirs_of_topic) - set(ours_of_topic) == NOT_HERE
    assert {name for name in ours_of_topic if not name.startswith(OWN)} <= set(theirs_of_topic)
    for name, key in TOPIC_KEYS.items():
        if name.startswith(OWN):
            continue
        assert key.kafka_default is None or key.kafka_default != key.default
        assert theirs_of_topic[name].value == (key.kafka_default or key.default), name
        # Which replicas are throttled is a topic's own; there is no default for all.
        assert broker_name(name) in theirs_of_broker or name.endswith("throttled.replicas"), name
    aliases = {kept for kept, _ in BROKER_ALIASES.values()}
    others = {}
    for name, key in BROKER_KEYS.items():
        if name.startswith(OWN) or f"\n{name}=" in SETTINGS:
            continue
        if name in theirs_of_broker:
            theirs, expected = theirs_of_broker[name].value or "", key.kafka_default or key.default
            if theirs != expected:
                others[name] = (theirs, expected)
        elif name not in aliases:
            others[name] = ("not described", key.default)
    assert {name: theirs for name, (theirs, _) in others.items()} == dict.fromkeys(NOT_DESCRIBED, "not described")
    assert set(BROKER_ALIASES) <= set(theirs_of_broker)


# What a client is told in cases that are easily told differently.


class Subject:
    """A broker with a topic of two partitions and another, compacted one; each action answers with an error's name."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.node = str(next(iter(self.admin.list_topics(timeout=30).brokers)))
        self.topic, self.compacted = f"t.{uuid4().hex[:8]}", f"c-{uuid4().hex[:8]}"
        limited = {"max.message.bytes": "2000", "compression.type": "uncompressed"}
        topics = [NewTopic(self.topic, 2, 1, config=limited)]
        topics.append(NewTopic(self.compacted, 1, 1, config={"cleanup.policy": "compact"}))
        for future in self.admin.create_topics(topics).values():
            future.result(30)

    def create(self, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, partitions, replicas, config=settings)
        return told(lambda: self.admin.create_topics([topic], validate_only=True)[name].result(30))

    def grow(self, count: int) -> str:
        return told(lambda: self.admin.create_partitions([NewPartitions(self.topic, count)])[self.topic].result(30))

    def alter(self, kind: ResourceType, resource: str, name: str, value: str | None, operation: str = "SET") -> str:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
        wanted = ConfigResource(kind, resource, incremental_configs=[entry])
        return told(lambda: self.admin.incremental_alter_configs([wanted], validate_only=True)[wanted].result(30))

    def delete_records(self, topic: str, offset: int) -> str:
        place = TopicPartition(topic, 0, offset)
        return told(lambda: next(iter(self.admin.delete_records([place]).values())).result(30))

    def offset(self, spec: OffsetSpec) -> str:
        place = TopicPartition(self.topic, 1)
        return told(lambda: self.admin.list_offsets({place: spec})[place].result(30).offset)

    def produce(self, topic: str, *, acks: int = -1, partition: int = 0, **message: Any) -> str:
        answers: list[str] = []
        producer = Producer(
            {"bootstrap.servers": self.servers, "acks": acks, "log_level": 0, "message.timeout.ms": 5000, "retries": 0}
        )
        producer.produce(
            topic,
            partition=partition,
            on_delivery=lambda error, _: answers.append("fine" if error is None else error.name()),
            **message,
        )
        producer.flush(30)
        return answers[0]


def told(action: Callable[[], object]) -> str:
    try:
        result = action()
    except KafkaException as failure:
        return str(failure.args[0].name())
    return "fine" if result is None or not isinstance(result, int) else str(result)


NOW_MS = time.time_ns() // 1_000_000
# What is done, what Kafka says to it, and the doing.
ACTIONS: tuple[tuple[str, str, Callable[["Subject"], str]], ...] = (
    ("a name with a blank", "TOPIC_EXCEPTION", lambda s: s.create("a b")),
    ("a name of two dots", "TOPIC_EXCEPTION", lambda s: s.create("..")),
    ("a long name", "TOPIC_EXCEPTION", lambda s: s.create("x" * 250)),
    ("the longest name", "fine", lambda s: s.create("x" * 249)),
    ("a name that collides", "TOPIC_EXCEPTION", lambda s: s.create(s.topic.replace(".", "_"))),
    ("a name that is taken", "TOPIC_ALREADY_EXISTS", lambda s: s.create(s.topic)),
    ("no partitions", "INVALID_PARTITIONS", lambda s: s.create("new", 0)),
    ("too many replicas", "INVALID_REPLICATION_FACTOR", lambda s: s.create("new", 1, 5)),
    ("an unknown setting", "INVALID_CONFIG", lambda s: s.create("new", no_such="1")),
    ("a value that is no number", "INVALID_CONFIG", lambda s: s.create("new", retention_ms="soon")),
    ("a value out of bounds", "INVALID_CONFIG", lambda s: s.create("new", compression_gzip_level="10")),
    (
        "lags that contradict",
        "INVALID_CONFIG",
        lambda s: s.create("new", min_compaction_lag_ms="20", max_compaction_lag_ms="10"),
    ),
    ("fewer partitions", "INVALID_PARTITIONS", lambda s: s.grow(1)),
    ("as many partitions", "INVALID_PARTITIONS", lambda s: s.grow(2)),
    (
        "a codec that is none",
        "INVALID_CONFIG",
        lambda s: s.alter(ResourceType.TOPIC, s.topic, "compression.type", "rar"),
    ),
    (
        "append to what is no list",
        "INVALID_CONFIG",
        lambda s: s.alter(ResourceType.TOPIC, s.topic, "retention.ms", "1", "APPEND"),
    ),
    ("append to a list", "fine", lambda s: s.alter(ResourceType.TOPIC, s.topic, "cleanup.policy", "compact", "APPEND")),
    ("delete what is not set", "fine", lambda s: s.alter(ResourceType.TOPIC, s.topic, "retention.ms", None, "DELETE")),
    (
        "settings of no topic",
        "UNKNOWN_TOPIC_OR_PART",
        lambda s: s.alter(ResourceType.TOPIC, "absent", "retention.ms", "1"),
    ),
    ("a fixed setting of a broker", "INVALID_REQUEST", lambda s: s.alter(ResourceType.BROKER, s.node, "node.id", "7")),
    ("records beyond the end", "OFFSET_OUT_OF_RANGE", lambda s: s.delete_records(s.topic, 100)),
    ("records of a compacted topic", "POLICY_VIOLATION", lambda s: s.delete_records(s.compacted, 0)),
    ("records of no topic", "_NOENT", lambda s: s.delete_records("absent", 0)),
    ("the earliest offset of nothing", "0", lambda s: s.offset(OffsetSpec.earliest())),
    ("the latest offset of nothing", "0", lambda s: s.offset(OffsetSpec.latest())),
    ("the largest time of nothing", "-1", lambda s: s.offset(OffsetSpec.max_timestamp())),
    ("an offset by a time when there is nothing", "-1", lambda s: s.offset(OffsetSpec.for_timestamp(5))),
    ("a record", "fine", lambda s: s.produce(s.topic, value=b"v")),
    ("a record that is too large", "MSG_SIZE_TOO_LARGE", lambda s: s.produce(s.topic, value=bytes(3000))),
    ("a record without a key", "INVALID_RECORD", lambda s: s.produce(s.compacted, value=b"v")),
    ("a record with a key", "fine", lambda s: s.produce(s.compacted, key=b"k", value=b"v")),
    (
        "a record of tomorrow",
        "INVALID_TIMESTAMP",
        lambda s: s.produce(s.topic, value=b"v", timestamp=NOW_MS + 86_400_000),
    ),
    ("a record of long ago", "fine", lambda s: s.produce(s.topic, value=b"v", timestamp=1000)),
    (
        "a record of clients in an internal topic",
        "TOPIC_EXCEPTION",
        lambda s: s.produce("__consumer_offsets", key=b"k", value=b"v"),
    ),
)


def have_internal_topic(servers: str) -> None:
    """Ask for a group's offsets until the topic that holds them is there."""
    group = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0})
    deadline = time.monotonic() + 60
    while True:
        try:
            group.committed([TopicPartition("absent", 0)], timeout=10)
            break
        except KafkaException:
            assert time.monotonic() < deadline, "it was not made"
            time.sleep(0.1)
    group.close()


@pytest.mark.parametrize("which", ["ours", pytest.param("kafka", marks=WITH_KAFKA)])
def test_clients_are_told_what_kafka_tells_them(which: str, request: pytest.FixtureRequest) -> None:
    servers = request.getfixturevalue(which)
    have_internal_topic(servers)
    subject = Subject(servers)
    assert [(name, action(subject)) for name, _, action in ACTIONS] == [(name, answer) for name, answer, _ in ACTIONS]
