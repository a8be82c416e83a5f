"""How many brokers the suites run against: one, or the three of `make compat BROKERS=3` with every topic on all."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from secured import librdkafka

if TYPE_CHECKING:
    from conftest import BrokerProcess

BROKERS = int(os.environ.get("FLUVIAL_COMPAT_BROKERS", "1"))
COPIES = min(BROKERS, 3)
START_SECONDS_MAX = 60.0


def words_of(node_id: int, ports: Sequence[int]) -> tuple[str, ...]:
    """What tells a node of its cluster."""
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))
    return ("--node-id", str(node_id), "--controller-quorum-voters", voters)


class Brokers:
    """Several nodes that tests use as they use one: the first is asked for what only one can tell."""

    def __init__(self, nodes: "list[BrokerProcess]") -> None:
        self.nodes = nodes

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def port(self) -> int:
        return self.nodes[0].port

    @property
    def log(self) -> Path:
        return self.nodes[0].log

    @property
    def data_dir(self) -> Path:
        return self.nodes[0].data_dir

    def start(self) -> None:
        """Start all, and wait until each knows of all."""
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.await_listening()
        deadline = time.monotonic() + START_SECONDS_MAX
        for node in self.nodes:
            admin = AdminClient({**librdkafka(node.bootstrap_servers), "log_level": 0})
            while True:
                with suppress(KafkaException):
                    if len(admin.list_topics(timeout=5).brokers) == len(self.nodes):
                        break
                assert time.monotonic() < deadline, node.log.read_text()
                time.sleep(0.1)

    def stop(self) -> int:
        return max(node.stop() for node in reversed(self.nodes))

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
