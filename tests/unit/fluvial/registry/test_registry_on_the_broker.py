"""The registry over the broker's own log: what was acknowledged survives a restart and a kill, ids stay unique."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_registry_state import picture, record_schema, register

from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError
from fluvial.registry.model.commands import DeleteSubject, SetConfig
from fluvial.registry.model.registry import SCHEMAS_TOPIC, Registry
from log_broker.config.broker import BrokerConfig
from log_broker.server.node import Node
from log_broker.server.partitions.internal_log import TopicLog
from tests.free_ports import free_port

START_SECONDS_MAX = 60


async def test_a_restart_finds_everything(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0)
    node = Node(config)
    await node.start()
    registry = Registry(TopicLog(node, SCHEMAS_TOPIC))
    await registry.open()
    for number in range(5):
        await register(registry, f"s{number % 2}", record_schema(*"abcde"[:number]))
    await registry.apply(SetConfig(subject="s0", settings={"compatibilityLevel": "FULL"}), action="configure")
    for permanent in (False, True):
        await registry.apply(DeleteSubject(subject="s1", permanent=permanent), action="delete")
    await node.stop()

    node = Node(config)
    await node.start()
    try:
        restarted = Registry(TopicLog(node, SCHEMAS_TOPIC))
        await restarted.open()
        assert picture(restarted) == picture(registry)
        assert (await register(restarted, "new", record_schema("z"))).id == registry.state.highest_id + 1
    finally:
        await node.stop()


class NodeProcess:
    """A node with its registry in a process of its own."""

    def __init__(self, data_dir: Path) -> None:
        self.port, self.registry_port = free_port(), free_port()
        self.client = RegistryClient(f"http://127.0.0.1:{self.registry_port}")
        command = [sys.executable, "-m", "fluvial.node", "--node-id", "0", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--registry-port", str(self.registry_port), "--data-dir", str(data_dir)]
        self.log = (data_dir.parent / "node.log").open("ab")
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.client.subjects()
                return
            except RegistryError:
                assert self.process.poll() is None, Path(self.log.name).read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.client.close()
        self.log.close()


def test_a_killed_registry_has_all_it_acknowledged_and_reuses_no_id(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    data_dir = tmp_path / "node"
    for life in range(3):
        node = NodeProcess(data_dir)
        try:
            for subject, schema_id in acknowledged.items():
                assert json.loads(node.client.schema_by_id(schema_id))["fields"][0]["name"] == subject
            writers = [
                threading.Thread(target=write_until_killed, args=(node, f"life{life}writer{n}", acknowledged))
                for n in range(3)
            ]
            for each in writers:
                each.start()
            wanted = len(acknowledged) + 30
            deadline = time.monotonic() + START_SECONDS_MAX
            while len(acknowledged) < wanted:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            node.kill()
            for each in writers:
                each.join()
        finally:
            node.close()
    assert len(set(acknowledged.values())) == len(acknowledged), "two schemas got one id"


def write_until_killed(node: NodeProcess, name: str, acknowledged: dict[str, int]) -> None:
    with RegistryClient(node.client.url) as client:
        for number in range(10_000):
            subject = f"{name}n{number}"
            try:
                schema_id = client.register(subject, record_schema(subject))
            except RegistryError:
                return
            acknowledged[subject] = schema_id


@pytest.mark.parametrize("level", ["id", "payload"])
def test_the_broker_refuses_what_the_registry_does_not_know(tmp_path: Path, level: str) -> None:
    from confluent_kafka import KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    node = NodeProcess(tmp_path / "node")
    try:
        servers = {"bootstrap.servers": f"127.0.0.1:{node.port}"}
        topic = NewTopic("users", num_partitions=1, config={"fluvial.value.schema.validation": level})
        admin = AdminClient(servers)
        admin.create_topics([topic])["users"].result(30)
        schema_id = node.client.register("users-value", '"string"')
        outcomes: dict[bytes | None, KafkaError | None] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            outcomes[message.key()] = error

        producer = Producer(servers | {"linger.ms": 0})
        good = b"\0" + schema_id.to_bytes(4, "big") + b"\2x"
        for key, value in {
            b"good": good,
            b"null": None,
            b"plain": b"x",
            b"unknown": good.replace(b"\1", b"\7"),
        }.items():
            producer.produce("users", key=key, value=value, on_delivery=delivered)
            producer.flush(30)
        damaged = good[:-1]
        producer.produce("users", key=b"damaged", value=damaged, on_delivery=delivered)
        producer.flush(30)
        accepted = {key for key, error in outcomes.items() if error is None}
        assert accepted == {b"good", *([b"damaged"] if level == "id" else [])}
        assert {error.code() for error in outcomes.values() if error} == {KafkaError.INVALID_RECORD}
    finally:
        node.close()


async def test_two_at_once_get_two_ids(tmp_path: Path) -> None:
    node = Node(BrokerConfig(data_dir=tmp_path, port=0))
    await node.start()
    try:
        registry = Registry(TopicLog(node, SCHEMAS_TOPIC))
        await registry.open()
        found = await asyncio.gather(*(register(registry, "s", record_schema(f"f{n}")) for n in range(20)))
        assert sorted(each.id for each in found) == list(range(1, 21))
        assert sorted(each.version for each in found) == list(range(1, 21))
    finally:
        await node.stop()
