"""
Kafka Connect, distributed: a file into a topic exactly once and out of it again, the worker killed on the way;
and MirrorMaker 2 between two clusters, with offsets of groups translated.
"""

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from compat_cluster import COPIES
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from secured import java, librdkafka

import log_broker
from tests.free_ports import free_ports
from tests.peers.kafka_jars import STREAMS_AND_CONNECT, kafka_command, lacking

LACK = lacking(STREAMS_AND_CONNECT)
pytestmark = [pytest.mark.skipif(LACK is not None, reason=LACK or ""), pytest.mark.compat_long]

FILE = "org.apache.kafka.connect.file.FileStream"
MIRROR = "org.apache.kafka.connect.mirror.Mirror"
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
LINES = 3_000
SECONDS_MAX = 600
Eventually = Callable[..., None]


def settings_of_all_clients(servers: str) -> dict[str, str]:
    """Those of the worker's own clients, and of the ones that it makes for connectors, which get nothing else."""
    own = java(servers)
    return own | {f"{kind}.{name}": own[name] for kind in ("producer", "consumer", "admin") for name in own}


class Worker:
    """One worker of Connect, and its REST interface."""

    def __init__(self, folder: Path, servers: str) -> None:
        (port,) = free_ports(1)
        name = f"connect-{uuid.uuid4().hex[:8]}"
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self.properties = folder / f"{name}.properties"
        settings = {
            **settings_of_all_clients(servers),
            "group.id": name,
            "listeners": self.url,
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            "exactly.once.source.support": "enabled",
            "plugin.discovery": "only_scan",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            **{f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("offset", "config", "status")},
            **{f"{kind}.storage.replication.factor": str(COPIES) for kind in ("offset", "config", "status")},
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = kafka_command(
            "org.apache.kafka.connect.cli.ConnectDistributed",
            self.properties,
            jvm=JVM,
            artifacts=STREAMS_AND_CONNECT,
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.log.parent)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def is_there(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-4000:]
        try:
            return httpx.get(f"{self.url}/connectors", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector, which must be one that the worker takes."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            answer = httpx.put(f"{self.url}/connectors/{name}/config", json=dict(config), timeout=120)
            if answer.status_code != 409:  # it is rebalancing, and asks to be asked again
                break
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.5)
        assert answer.status_code in {200, 201}, answer.text

    def is_running(self, name: str) -> bool:
        answer = httpx.get(f"{self.url}/connectors/{name}/status", timeout=60)
        if answer.status_code != 200:
            return False
        status = answer.json()
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        assert "FAILED" not in states, status
        return len(states) > 1 and set(states) == {"RUNNING"}

    def restart_what_committed_too_early(self, name: str) -> None:
        """
        Restart a connector's tasks that failed because their producer sent EndTxn before any record, as users do.

        Kafka's sender asks whether batches are incomplete before it takes the lock under which the next request is
        chosen; what is sent and committed in between is committed at once, and every broker refuses that.
        """
        answer = httpx.get(f"{self.url}/connectors/{name}/status", timeout=60)
        tasks = answer.json()["tasks"] if answer.status_code == 200 else []
        if any(task["state"] == "FAILED" and "InvalidTxnStateException" in task["trace"] for task in tasks):
            restart = {"includeTasks": "true", "onlyFailed": "true"}
            httpx.post(f"{self.url}/connectors/{name}/restart", params=restart, timeout=60)


@contextmanager
def worker_at(servers: str, folder: Path, eventually: Eventually) -> Iterator[Worker]:
    worker = Worker(folder, servers)
    worker.start()
    try:
        eventually(worker.is_there, SECONDS_MAX)
        yield worker
    finally:
        worker.kill()


def committed(servers: str, topic: str, group: str | None = None) -> list[str]:
    """What a reader of committed records gets of a topic's only partition: all, or from where a group goes on."""
    client = Consumer({**librdkafka(servers), "group.id": group or "any", "isolation.level": "read_committed"})
    found: list[str] = []
    try:
        place = TopicPartition(topic, 0, 0)
        if group is not None:
            (place,) = client.committed([place], timeout=60)
        _, end = client.get_watermark_offsets(place, 60)
        client.assign([place])
        while client.position([place])[0].offset < end:
            found += [(message.value() or b"").decode() for message in client.consume(5_000, 0.5)]
    finally:
        client.close()
    return found


def create(servers: str, topic: str, copies: int) -> None:
    admin = AdminClient(librdkafka(servers))
    admin.create_topics([NewTopic(topic, 1, copies)])[topic].result(60)


def test_lines_of_a_file_come_once_though_the_worker_is_killed(
    stock_broker: Any, tmp_path: Path, eventually: Eventually
) -> None:
    servers, topic = stock_broker.bootstrap_servers, f"lines-{uuid.uuid4().hex[:8]}"
    create(servers, topic, COPIES)
    lines = [f"line {number}" for number in range(2 * LINES)]
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"{line}\n" for line in lines[:LINES]))
    with worker_at(servers, tmp_path, eventually) as worker:
        # In transactions of a hundred: the worker dies within some.
        reading = {
            "connector.class": f"{FILE}SourceConnector",
            "file": str(source),
            "topic": topic,
            "batch.size": "100",
        }
        worker.put("reading", reading | {"exactly.once.support": "required", "tasks.max": "1"})
        eventually(lambda: len(committed(servers, topic)) > 100, SECONDS_MAX)
        worker.kill()
        with source.open("a") as more:
            more.writelines(f"{line}\n" for line in lines[LINES:])
        worker.start()
        eventually(worker.is_there, SECONDS_MAX)

        def all_are_read() -> bool:
            worker.restart_what_committed_too_early("reading")
            return len(committed(servers, topic)) >= len(lines)

        eventually(all_are_read, SECONDS_MAX)
        assert committed(servers, topic) == lines

        writing = {"connector.class": f"{FILE}SinkConnector", "file": str(sink), "topics": topic, "tasks.max": "1"}
        worker.put("writing", writing | {"consumer.override.isolation.level": "read_committed"})
        eventually(lambda: sink.exists() and len(sink.read_text().splitlines()) >= len(lines), SECONDS_MAX)
        assert sink.read_text().splitlines() == lines


def test_mirrormaker_copies_and_translates_the_offsets_of_a_group(
    stock_broker: Any, tmp_path: Path, eventually: Eventually
) -> None:
    """From another of our clusters: its topic is here under the name of where it is from, and a group goes on here."""
    here, topic, group = stock_broker.bootstrap_servers, f"orders-{uuid.uuid4().hex[:8]}", "readers"
    with log_broker.embedded(data_dir=tmp_path / "there") as there:
        create(there.bootstrap_servers, topic, 1)
        producer = Producer(librdkafka(there.bootstrap_servers))
        for number in range(1_000):
            producer.produce(topic, str(number))
        assert producer.flush(60) == 0
        consumer = Consumer({**librdkafka(there.bootstrap_servers), "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 1_000)], asynchronous=False)
        consumer.close()
        clusters = {
            "source.cluster.alias": "there",
            "target.cluster.alias": "here",
            **{f"source.cluster.{name}": value for name, value in java(there.bootstrap_servers).items()},
            **{f"target.cluster.{name}": value for name, value in java(here).items()},
            "key.converter": BYTES,
            "value.converter": BYTES,
            "tasks.max": "1",
        }
        copying = {
            "connector.class": f"{MIRROR}SourceConnector",
            "topics": topic,
            "replication.factor": str(COPIES),
            "offset-syncs.topic.replication.factor": "1",
            "sync.topic.acls.enabled": "false",
        }
        translating = {
            "connector.class": f"{MIRROR}CheckpointConnector",
            "groups": group,
            "checkpoints.topic.replication.factor": str(COPIES),
            "emit.checkpoints.interval.seconds": "1",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "refresh.groups.interval.seconds": "2",
        }
        with worker_at(here, tmp_path, eventually) as worker:
            worker.put("copying", clusters | copying)
            eventually(lambda: worker.is_running("copying"), SECONDS_MAX)
            mirrored = f"there.{topic}"
            eventually(lambda: mirrored in AdminClient(librdkafka(here)).list_topics().topics, SECONDS_MAX)
            eventually(lambda: len(committed(here, mirrored)) >= 1_000, SECONDS_MAX)
            assert committed(here, mirrored) == [str(number) for number in range(1_000)]
            worker.put("translating", clusters | translating)
            reader = Consumer({**librdkafka(here), "group.id": group})

            def goes_on_at() -> int:
                (found,) = reader.committed([TopicPartition(mirrored, 0)], timeout=60)
                return int(found.offset)

            eventually(lambda: goes_on_at() > 0, SECONDS_MAX)
            reader.close()
            for number in range(1_000, 1_010):
                producer.produce(topic, str(number))
            assert producer.flush(60) == 0
            eventually(lambda: len(committed(here, mirrored)) >= 1_010, SECONDS_MAX)
            # An offset between two that were synchronised becomes one before it: some come again, none is left out.
            rest = committed(here, mirrored, group)
            assert rest[-10:] == [str(number) for number in range(1_000, 1_010)]
            assert rest == [str(number) for number in range(1_010)][-len(rest) :]
