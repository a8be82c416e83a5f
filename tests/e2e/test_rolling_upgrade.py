"""
Three nodes replaced one by one by those of another release, and back again, while a producer writes with acks=all.

Each release is the wheel of a commit: FLUVIAL_UPGRADE="OLD NEW" names other ones than an earlier commit and this tree.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from local_platform import ROOT, wait_until

from tests.free_ports import free_port

NODES, PARTITIONS = 3, 3
# From before the roles of doctor and alerts; its metadata.version is the present one.
OLD, THIS_TREE = "8f1d958", "HEAD"
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
RECORDS_PER_STEP_MIN = 200

pytestmark = pytest.mark.rota  # twelve nodes started, two wheels built


def wheel_of(commit: str, folder: Path) -> Path:
    """Build the wheel of a commit; return the folder with what it holds."""
    tree = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if tree.returncode != 0:
        pytest.skip(f"the history of this clone has no commit {commit}: {tree.stderr.decode().strip()}")
    source = folder / "source"
    with tarfile.open(fileobj=io.BytesIO(tree.stdout)) as archive:
        archive.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


@dataclass
class Cluster:
    """Three nodes on ports of this machine, each of some release."""

    folder: Path
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(NODES)])
    registries: list[int] = field(default_factory=lambda: [free_port() for _ in range(NODES)])
    running: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self, node: int, release: Path) -> None:
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in enumerate(self.ports))
        words = (
            *("--node-id", str(node), "--host", "127.0.0.1", "--port", str(self.ports[node])),
            *("--registry-port", str(self.registries[node]), "--data-dir", str(self.folder / str(node))),
            *("--cluster-id", CLUSTER_ID, "--controller-quorum-voters", voters),
            *("--set", "default.replication.factor=3", "--set", "min.insync.replicas=2"),
        )
        with (self.folder / f"{node}.log").open("ab") as log:
            self.running[node] = subprocess.Popen(
                [sys.executable, "-P", "-m", "fluvial.node", *words],
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(release)},
                stderr=log,
            )

    def replace(self, node: int, release: Path) -> None:
        """End a node as its supervisor does, and start it from another release with the same folder."""
        process = self.running.pop(node)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (self.folder / f"{node}.log").read_text()[-3000:]
        self.start(node, release)

    def is_whole(self) -> bool:
        """Whether all replicas of all partitions are in sync; fails where a node has ended."""
        for node, process in self.running.items():
            assert process.poll() is None, (self.folder / f"{node}.log").read_text()[-3000:]
        try:
            found = AdminClient({"bootstrap.servers": self.servers}).list_topics(timeout=10)
        except Exception:  # librdkafka's, of a cluster that is starting
            return False
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == NODES and all(len(each.isrs) == NODES for each in partitions)


class Load:
    """One producer with acks=all that writes numbers until it is stopped."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 300_000}
        )
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._ended.is_set():
            self._producer.produce("orders", str(number), str(number), on_delivery=self._answered)
            number += 1
            self._producer.poll(0.005)
        assert self._producer.flush(300) == 0

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append(int(message.value() or b""))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    cluster = Cluster(nodes)
    yield cluster
    for process in cluster.running.values():
        process.kill()
        process.wait()


def test_nothing_is_lost_from_one_release_to_another_and_back(cluster: Cluster, tmp_path: Path) -> None:
    commits = os.environ.get("FLUVIAL_UPGRADE", f"{OLD} {THIS_TREE}").split()
    old, new = (wheel_of(commit, tmp_path / f"{place}-{commit}") for place, commit in enumerate(commits))
    for node in range(NODES):
        cluster.start(node, old)
    wait_until(cluster.is_whole)
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    admin.create_topics([NewTopic("orders", PARTITIONS, NODES, config={"min.insync.replicas": "2"})])["orders"].result(
        60
    )
    wait_until(cluster.is_whole)
    answer = httpx.post(
        f"http://127.0.0.1:{cluster.registries[0]}/subjects/orders-value/versions", json={"schema": SCHEMA}, timeout=60
    )
    schema_id = answer.raise_for_status().json()["id"]

    load = Load(cluster.servers)
    try:
        for release in (new, old):
            for node in range(NODES):
                before = len(load.acknowledged)
                wait_until(lambda before=before: len(load.acknowledged) > before + RECORDS_PER_STEP_MIN)  # type: ignore[misc]
                cluster.replace(node, release)
                wait_until(cluster.is_whole)
                wait_until(lambda node=node: schema_of(cluster, node, schema_id) == json.loads(SCHEMA))  # type: ignore[misc]
    finally:
        load.stop()
    assert load.failed == []
    assert len(load.acknowledged) > 2 * NODES * RECORDS_PER_STEP_MIN
    assert sorted(records(cluster.servers)) == sorted(load.acknowledged)


def schema_of(cluster: Cluster, node: int, schema_id: int) -> Any:
    """What the registry of a node says; None while it does not answer."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{cluster.registries[node]}/schemas/ids/{schema_id}", timeout=10)
    except httpx.TransportError:
        return None
    return json.loads(answer.json()["schema"]) if answer.status_code == 200 else None


def records(servers: str) -> list[int]:
    """All that the topic holds."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "any", "auto.offset.reset": "earliest"})
    found: list[int] = []
    for partition in range(PARTITIONS):
        _, end = consumer.get_watermark_offsets(TopicPartition("orders", partition), timeout=60)
        consumer.assign([TopicPartition("orders", partition, 0)])
        deadline = time.monotonic() + 300
        count = 0
        while count < end:
            assert time.monotonic() < deadline, f"{count} of {end} records of partition {partition} came"
            batch = consumer.consume(1_000, 10)
            assert all(message.error() is None for message in batch), [message.error() for message in batch]
            found += [int(message.value() or b"") for message in batch]
            count += len(batch)
    consumer.close()
    return found
