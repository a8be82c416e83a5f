"""The quorum of real processes: the controller is killed with SIGKILL, and the others go on."""

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from node_cluster import QUICK

from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request
from tests.free_ports import free_ports

SECONDS_MAX = 60.0


class Processes:
    """Three combined nodes, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = free_ports(3)
        self.running: dict[int, subprocess.Popen[str]] = {}

    def start(self, *node_ids: int) -> None:
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(self.ports))
        for node_id in node_ids:
            words = [sys.executable, "-m", "log_broker", "--node-id", str(node_id), "--log-level", "error"]
            words += ["--port", str(self.ports[node_id]), "--data-dir", str(self._folder / f"n{node_id}")]
            words += ["--controller-quorum-voters", voters]
            words += [word for name, text in QUICK.items() for word in ("--set", f"{name}={text}")]
            self.running[node_id] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        for node_id in node_ids:
            output = self.running[node_id].stdout
            assert output is not None
            assert output.readline() == f"listening on 127.0.0.1:{self.ports[node_id]}\n"

    def kill(self, node_id: int) -> None:
        process = self.running.pop(node_id)
        process.kill()
        process.communicate(timeout=SECONDS_MAX)

    def stop(self) -> list[int]:
        """Stop all in order, at the same time; return their exit statuses."""
        for process in self.running.values():
            process.terminate()
        statuses = []
        for process in self.running.values():
            process.communicate(timeout=SECONDS_MAX)
            statuses.append(process.returncode)
        self.running.clear()
        return statuses

    def admin(self) -> AdminClient:
        servers = ",".join(f"127.0.0.1:{self.ports[node_id]}" for node_id in self.running)
        return AdminClient({"bootstrap.servers": servers, "log_level": 0})


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    try:
        yield started
    finally:
        for node_id in list(started.running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.kill(node_id)


def make(admin: AdminClient, name: str) -> None:
    """Make a topic, again where the controller changed meanwhile; one that is there by then was made."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            admin.create_topics([NewTopic(name, 1, 1)], request_timeout=SECONDS_MAX)[name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.REQUEST_TIMED_OUT and time.monotonic() < deadline:
                continue
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return


def leader_of(port: int) -> int:
    """Ask the node on a port who leads the metadata quorum."""
    asked = {"topics": ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)}
    request = write_request(ApiKey.DESCRIBE_QUORUM, 2, 1, "t", asked)
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as link:
        link.sendall(struct.pack(">i", len(request)) + request)
        with link.makefile("rb") as stream:
            (length,) = struct.unpack(">i", stream.read(4))
            answer = read_response(ApiKey.DESCRIBE_QUORUM, 2, memoryview(stream.read(length))[4:])
    return int(answer.topics[0].partitions[0].leader_id)


def test_the_controller_is_killed_and_comes_back(processes: Processes) -> None:
    processes.start(0, 1, 2)
    admin = processes.admin()
    make(admin, "before")
    killed = leader_of(processes.ports[0])
    processes.kill(killed)
    admin = processes.admin()
    make(admin, "after")
    processes.start(killed)
    deadline = time.monotonic() + SECONDS_MAX
    while set(processes.admin().list_topics(timeout=SECONDS_MAX).topics) < {"before", "after"}:
        assert time.monotonic() < deadline
    assert processes.stop() == [0, 0, 0]
