"""Our settings beside those of a running Apache Kafka: the same names and defaults, but for those that say so."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType

import log_broker
from log_broker.config import BROKER_ALIASES, BROKER_KEYS, TOPIC_KEYS, broker_name
from tests.peers.kafka_jars import lacking, run_kafka, start_kafka

pytestmark = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))

# Kafka's settings of topics that belong to features that are not here; setting one is refused.
NOT_HERE = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
}
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminClient]:
    """A running Apache Kafka."""
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
        yield admin
    finally:
        process.kill()
        process.wait()


def described(admin: AdminClient) -> tuple[dict[str, ConfigEntry], dict[str, ConfigEntry]]:
    """The settings of a new topic and of the broker."""
    topic = f"t-{uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    node = next(iter(admin.list_topics(timeout=10).brokers))
    resources = [ConfigResource(ResourceType.TOPIC, topic), ConfigResource(ResourceType.BROKER, str(node))]
    answers = admin.describe_configs(resources)
    return answers[resources[0]].result(30), answers[resources[1]].result(30)


def test_names_and_defaults_are_kafkas(kafka: AdminClient, tmp_path: Path) -> None:
    theirs_of_topic, theirs_of_broker = described(kafka)
    with log_broker.embedded(data_dir=tmp_path / "data") as broker:
        ours_of_topic, _ = described(AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}))
    assert set(theirs_of_topic) - set(ours_of_topic) == NOT_HERE
    assert {name for name in ours_of_topic if not name.startswith("fluvial.")} <= set(theirs_of_topic)
    for name, key in TOPIC_KEYS.items():
        if name.startswith("fluvial."):
            continue
        assert key.kafka_default is None or key.kafka_default != key.default
        assert theirs_of_topic[name].value == (key.kafka_default or key.default), name
        assert broker_name(name) in theirs_of_broker, name
    for name, key in BROKER_KEYS.items():
        if name in theirs_of_broker and not name.startswith("fluvial."):
            assert theirs_of_broker[name].value == (key.kafka_default or key.default), name
        else:
            assert name.startswith("fluvial.") or name in {kept for kept, _ in BROKER_ALIASES.values()}, name
    assert set(BROKER_ALIASES) <= set(theirs_of_broker)
