"""A leader's disk fails once, while followers hold what it was to sync: a moment passes, and no record is lost."""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from node_cluster import cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process import sync_pool
from log_broker.storage.files import OsFile

RECORDS = 200


@contextmanager
def failing_once(runtime: PartitionRuntime) -> Iterator[list[int]]:
    """Have a sync of a log fail, and the system forget what it could not write; yields how many bytes those were."""
    file = runtime.replica.log.segments[-1].files.log
    synced, sync, lost = file.size(), OsFile.sync, list[int]()

    def fails(self: OsFile) -> None:
        nonlocal synced
        if self is file and not lost and self.size() > synced > 0:
            lost.append(self.size() - synced)
            self.truncate(synced)
            raise OSError(errno.EIO, "Input/output error")
        sync(self)
        synced = self.size() if self is file else synced

    with patch.object(OsFile, "sync", fails):
        yield lost


@pytest.fixture(autouse=True)
def files_synced_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `failing_once` takes the place of; compiled threads tell of their errors in the same way."""
    monkeypatch.setattr(sync_pool, "compiled", None)


def write(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    for number in range(RECORDS):
        producer.produce("t", b"%d" % number)
        if number % 20 == 0:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0


def read(servers: str) -> list[bytes | None]:
    # Two brokers are too few for the topic of committed offsets.
    reader = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False, "log_level": 0})
    reader.assign([TopicPartition("t", 0, 0)])
    found: list[Message] = []
    while len(found) < RECORDS:
        found += reader.consume(RECORDS, 1)
    found += reader.consume(RECORDS, 0.5)
    reader.close()
    return [message.value() for message in found]


@pytest.mark.parametrize("few", [False, True], ids=["three in sync", "no more in sync than must be"])
async def test_a_failed_sync_of_a_leader_costs_a_moment_and_no_record(tmp_path: Path, few: bool) -> None:
    settings = {"min.insync.replicas": "2", "broker.session.timeout.ms": "3000"}
    async with cluster_of(tmp_path, 3, settings) as cluster:
        topic = CreateTopic(name="t", topic_id=uuid4().hex, assignments={0: (0, 1, 2)})
        await cluster.nodes[0].authority.create_topic(topic)
        if few:
            await cluster.kill(2)
        image = cluster.nodes[0].cluster
        await eventually(lambda: len(image.topics["t"].partitions[0].isr) == len(cluster.nodes))
        await eventually(lambda: cluster.nodes[0].logs.led("t", 0) is not None)
        before = image.topics["t"].partitions[0].leader_epoch
        runtime = cluster.nodes[0].logs.led("t", 0)
        assert runtime is not None
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())

        with failing_once(runtime) as lost:
            await asyncio.to_thread(write, servers)
        assert lost
        assert await asyncio.to_thread(read, servers) == [b"%d" % number for number in range(RECORDS)]

        assert image.topics["t"].partitions[0].leader_epoch > before, "no offset is given out twice in one epoch"
        replicas = [node.logs.get("t", 0) for node in cluster.nodes.values()]
        await eventually(lambda: all(each is not None and each.offline_reason is None for each in replicas))
        await eventually(lambda: {each.log_end_offset for each in replicas if each is not None} == {RECORDS})
