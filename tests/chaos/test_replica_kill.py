"""Three nodes as processes, and the leader of a partition killed under a producer that was promised everything."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_cluster import Cluster
from confluent_kafka import Consumer, Message, Producer, TopicPartition

TOPIC = "t"
# The session is as short as two missed heartbeats; its length is what a failover mostly waits for.
SETTINGS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "250"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", settings=SETTINGS)
    try:
        yield made.start()
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
    cluster.create_topic(TOPIC, placed=[[1, 2, 3]])
    load = Load(cluster.bootstrap)
    cluster.eventually(lambda: len(load.acked) > 200, "a producer is acknowledged")
    epoch = cluster.partition(TOPIC).leader_epoch
    cluster.node(1).kill()
    cluster.await_leader(TOPIC, [2, 3])
    acked = len(load.acked)
    cluster.eventually(lambda: len(load.acked) > acked + 200, "it is acknowledged by the new leader")
    cluster.restart(1)
    cluster.await_isr(TOPIC, [1, 2, 3])
    load.stop()
    assert not load.refused
    assert cluster.partition(TOPIC).leader_epoch > epoch
    assert load.acked == list(range(load.sent))
    assert read(cluster.bootstrap) == list(range(load.sent)), "every record once, in order"
    cluster.await_equal_logs(TOPIC)
