"""
The two clusters under test: three nodes of ours and three of Apache Kafka, each with its own defaults.

Ours is what `fluvial up --brokers 3` starts, without the registry; Kafka is KRaft in combined mode, so that on either
side each of three processes is broker and voter. Two Kafkas run side by side in one cluster: what differs between
its default and `flush.messages=1` is set on topics.
"""

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from fluvial import kafka
from fluvial.cluster.picture import picture_of
from fluvial.cluster.wire import ClusterLink
from tests.bench.broker.servers import KAFKA_FLAGS, KAFKA_PROPERTIES, ROOT, Broker, Memory
from tests.free_ports import free_ports
from tests.peers.kafka_jars import kafka_command, run_kafka

NODES = 3
START_SECONDS_MAX = 300.0
KAFKA_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
# What three nodes differ in from the single node of Kafka's own server.properties.
_KAFKA_THREE = {
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


class Member(Broker):
    """One node of a cluster."""

    def __init__(self, folder: Path, node_id: int) -> None:
        super().__init__(folder)
        self.node_id = node_id

    def launch(self) -> None:
        """Start the process and return at once."""
        with self.log_path.open("ab") as log:
            self._process = self.spawn(log)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


class OurMember(Member):
    """A node of this checkout."""

    name = "ours"

    def __init__(self, folder: Path, node_id: int, port: int, voters: str) -> None:
        super().__init__(folder, node_id)
        self.port = port
        self._voters = voters

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "log_broker", "--data-dir", str(self.data_dir), "--port", str(self.port)]
        words += ["--node-id", str(self.node_id), "--controller-quorum-voters", self._voters]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)


class KafkaMember(Member):
    """A node of Apache Kafka."""

    name = "Kafka"

    def __init__(self, folder: Path, node_id: int, port: int, controller: int, voters: str) -> None:
        super().__init__(folder, node_id)
        self.port = port
        self._controller = controller
        self._voters = voters
        self._properties = folder / "server.properties"

    def prepare(self) -> None:
        lines = KAFKA_PROPERTIES.format(port=self.port, controller=self._controller, data=self.data_dir, more="")
        settings = dict(line.split("=", 1) for line in lines.splitlines() if "=" in line) | _KAFKA_THREE
        settings |= {"node.id": str(self.node_id), "controller.quorum.voters": self._voters}
        self._properties.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        done = run_kafka("kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER_ID, "-c", self._properties)
        if done.returncode:
            raise RuntimeError(f"Kafka's data directory could not be formatted:\n{done.stdout}{done.stderr}")

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = kafka_command("kafka.Kafka", self._properties, jvm=KAFKA_FLAGS)
        return subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class Cluster(ABC):
    """Three nodes. Measured like one broker: its CPU time and its memory are the sum of its nodes'."""

    name = ""
    replication_factor = NODES

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: tuple[Member, ...] = ()

    @abstractmethod
    def plan(self) -> tuple[Member, ...]:
        """Return the nodes on free ports, not started."""

    @property
    def address(self) -> str:
        return ",".join(member.address for member in self.members)

    def member(self, node_id: int) -> Member:
        return next(member for member in self.members if member.node_id == node_id)

    def start(self) -> float:
        """Start all nodes and return the seconds until each of them lists all of them."""
        if not self.members:
            self.members = self.plan()
            for member in self.members:
                member.prepare()
        began = time.monotonic()
        for member in self.members:
            if not member.is_running:
                member.launch()
        self.await_nodes(NODES, began + START_SECONDS_MAX)
        return time.monotonic() - began

    def await_nodes(self, count: int, deadline: float) -> None:
        """Return once each running node lists so many."""
        for member in self.members:
            while member.is_running and self._listed(member) != count:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name}: node {member.node_id} does not list {count} nodes")
                time.sleep(0.1)
            if not member.is_running and count == NODES:
                raise RuntimeError(f"{self.name}: node {member.node_id} ended:\n{member.log_text()[-3000:]}")

    def _listed(self, member: Member) -> int:
        admin = AdminClient({"bootstrap.servers": member.address, "log_level": 0})
        with suppress(KafkaException):
            return len(admin.list_topics(timeout=2).brokers)
        return 0

    def leaders(self, topic: str) -> list[Member]:
        """Return the node that leads each partition."""
        found = self._partitions_once(topic, lambda at: at.leader >= 0, "have no leaders")
        return [self.member(found[at].leader) for at in sorted(found)]

    def await_in_sync(self, topic: str) -> None:
        """Return once every replica of a topic is in sync."""
        self._partitions_once(topic, lambda at: len(at.isrs) == NODES and at.leader >= 0, "do not get in sync")

    def _partitions_once(self, topic: str, ready: Callable[[Any], bool], otherwise: str) -> Mapping[int, Any]:
        """Return a topic's partitions once all are `ready`; a node may be asked that has not heard of the topic yet."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                partitions: Mapping[int, Any] = admin.list_topics(topic, timeout=30).topics[topic].partitions
                if partitions and all(map(ready, partitions.values())):
                    return partitions
            time.sleep(0.1)
        raise RuntimeError(f"{self.name}: the partitions of {topic} {otherwise}")

    def prefer_leaders(self) -> None:
        """Have the preferred replicas lead again, so that each round begins as the first did."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.elect_leaders(ElectionType.PREFERRED).result()

    def controller(self) -> Member:
        """Return the node that is the active controller."""
        with ClusterLink(kafka.KafkaCluster(self.address)) as link:
            quorum = picture_of(link).quorum
        if quorum is None:
            raise RuntimeError(f"{self.name} has no controller")
        return self.member(quorum.leader)

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self.members)

    def memory(self) -> Memory:
        held = [member.memory() for member in self.members]
        return Memory(sum(each.rss for each in held), sum(each.pss for each in held))


class OurCluster(Cluster):
    name = "ours"

    def plan(self) -> tuple[Member, ...]:
        ports = free_ports(NODES)
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(ports))
        return tuple(OurMember(self.folder / f"node-{at}", at, port, voters) for at, port in enumerate(ports))


class KafkaCluster(Cluster):
    name = "Kafka"

    def plan(self) -> tuple[Member, ...]:
        ports = free_ports(2 * NODES)
        voters = ",".join(f"{at}@127.0.0.1:{port}" for at, port in enumerate(ports[NODES:]))
        return tuple(
            KafkaMember(self.folder / f"node-{at}", at, ports[at], ports[NODES + at], voters) for at in range(NODES)
        )
