"""Three nodes as processes, and the leader of a partition killed under a producer that was promised everything."""

import contextlib
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.free_ports import free_ports

TOPIC = "t"
NODES = (1, 2, 3)
# The session is what a failover mostly waits for.
SETTINGS = ("broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=250", "auto.leader.rebalance.enable=false")
SECONDS_MAX = 60.0


class Cluster:
    """Three nodes, each broker and voter, as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def start(self, *nodes: int) -> None:
        """Start nodes and wait until all brokers are known."""
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self._ports.items())
        for node in nodes:
            command = [sys.executable, "-m", "log_broker", "--data-dir", str(self._folder / f"n{node}")]
            command += ["--node-id", str(node), "--port", str(self._ports[node])]
            command += ["--controller-quorum-voters", voters]
            for setting in SETTINGS:
                command += ["--set", setting]
            with (self._folder / f"log{node}").open("ab") as log:
                self._processes[node] = subprocess.Popen(command, stdout=log, stderr=log)
        self.eventually(lambda: len(self._admin.list_topics(timeout=5).brokers) == len(NODES), "all brokers serve")

    def kill(self, node: int) -> None:
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def close(self) -> None:
        for node in list(self._processes):
            self.kill(node)

    def create_topic(self) -> None:
        topic = NewTopic(TOPIC, 1, replica_assignment=[list(NODES)])
        self._admin.create_topics([topic])[TOPIC].result(30)
        self.eventually(lambda: self.leader() == NODES[0], "the topic is led")

    def leader(self) -> int:
        leader: int = self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].leader
        return leader

    def isr(self) -> set[int]:
        return set(self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].isrs)

    def digests(self) -> set[str]:
        """What lies on the disks of the partition."""
        files = [sorted((self._folder / f"n{node}" / f"{TOPIC}-0").glob("*.log")) for node in NODES]
        return {hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest() for paths in files}

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that tells nobody when it comes true."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            with contextlib.suppress(KafkaException, KeyError):
                if condition():
                    return
            logs = "\n".join((self._folder / f"log{node}").read_text()[-1500:] for node in NODES)
            assert time.monotonic() < deadline, f"it did not come true that {what}\n{logs}"
            time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start(*NODES)
        yield made
    finally:
        made.close()


class Load:
    """Numbers, produced idempotently with acks=all until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: list[int] = []
        self.refused: list[str] = []
        self.sent = 0
        self._stopped = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Wait until everything has been answered."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for _ in range(10):
                self._producer.produce(TOPIC, b"%d" % self.sent, partition=0, on_delivery=self._answered)
                self.sent += 1
            self._producer.poll(0.01)
        self._producer.flush(60)

    def _answered(self, error: object, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            value = message.value()
            assert value is not None
            self.acked.append(int(value))


def read(bootstrap: str) -> list[int]:
    """Read all there is, in order."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "log_level": 0}
    )
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    while True:
        for message in reader.consume(1000, 1.0):
            if message.error() is not None:
                reader.close()
                return found
            value = message.value()
            assert value is not None
            found.append(int(value))


def test_a_leader_that_is_killed_takes_no_acked_record_with_it_and_none_comes_twice(cluster: Cluster) -> None:
    cluster.create_topic()
    load = Load(cluster.bootstrap)
    cluster.eventually(lambda: len(load.acked) > 200, "a producer is acknowledged")
    cluster.kill(1)
    cluster.eventually(lambda: cluster.leader() in {2, 3}, "another leads")
    acked = len(load.acked)
    cluster.eventually(lambda: len(load.acked) > acked + 200, "the new leader acknowledges")
    cluster.start(1)
    cluster.eventually(lambda: cluster.isr() == set(NODES), "the returned replica is in sync")
    load.stop()
    assert not load.refused
    assert load.acked == list(range(load.sent))
    assert read(cluster.bootstrap) == list(range(load.sent)), "every record once, in order"
    cluster.eventually(lambda: len(cluster.digests()) == 1, "the logs are equal")
