"""The sender's patience with a cluster that takes nothing."""

import gc
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fluvial.kafka import KafkaCluster
from fluvial_demo.sender import Outgoing, Sender
from fluvial_demo.topic_log import PublishError


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


def test_a_cluster_that_takes_nothing_is_given_up(silent_server: str) -> None:
    sender = Sender(KafkaCluster(silent_server), stalled_after_s=0.2)
    records = [Outgoing(b"value", b"key", 0, 0)]
    try:
        with pytest.raises(PublishError, match="has taken no record for 0 s"):
            sender.send("flights", [records], lambda sent: None)
    finally:
        sender.close()


def test_nothing_to_send_needs_no_cluster(silent_server: str) -> None:
    sender, heard = Sender(KafkaCluster(silent_server)), []
    sender.send("flights", [], heard.append)
    sender.close()
    assert heard in ([], [0])


def running_clients() -> int:
    """How many librdkafka clients this process has: each has one thread of this name."""
    found = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended since
            found += (thread / "comm").read_text().startswith("rdk:main")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
def test_a_closed_sender_leaves_no_client(silent_server: str) -> None:
    gc.collect()
    gc.disable()
    try:
        before = running_clients()
        sender = Sender(KafkaCluster(silent_server))
        assert running_clients() == before + 1
        sender.close()
        assert running_clients() == before
    finally:
        gc.enable()
