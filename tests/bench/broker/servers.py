"""
The two brokers under test, each a process of its own on a free port: ours and Apache Kafka.

Both get what a user gets: ours `python -m log_broker` with its defaults, Kafka the settings of its own
`config/server.properties` and the JVM flags of its own start script, in KRaft combined mode.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
from confluent_kafka import KafkaException, Producer

from tests.free_ports import free_ports
from tests.peers.kafka_jars import kafka_command, run_kafka

ROOT = Path(__file__).parents[3]
START_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 120.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

KAFKA_FLAGS = (
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
{more}
"""
KAFKA_ID = "MkU3OEVBNTcwNTJENDM2Qk"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process holds, in MiB; `pss` counts a page shared with others by its share."""

    rss: float
    pss: float


class Broker(ABC):
    """One broker process with its data under `folder`; it can be stopped or killed and started again on its data."""

    name = ""
    replication_factor = 1
    cleaner_backoff_ms = 15_000  # Kafka's default and ours; set before the first start

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_path = folder / "broker.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} is not running"
        return self._process

    @property
    def cleaner_setting(self) -> str:
        return f"log.cleaner.backoff.ms={self.cleaner_backoff_ms}"

    def prepare(self) -> None:  # noqa: B027 a broker may need nothing of it
        """Do what a user does once, before the first start."""

    @abstractmethod
    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start the process, its output going to `log`."""

    def start(self) -> float:
        """Start and return the seconds from the spawn of the process to the first acknowledged record."""
        if not self.port:
            self.prepare()
        with self.log_path.open("ab") as log:
            began = time.monotonic()
            self._process = self.spawn(log)
        self._await_listening(began)
        acknowledge_one(self.address, began + START_SECONDS_MAX)
        return time.monotonic() - began

    def stop(self) -> None:
        """End in order, as a service manager would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End at once: nothing is synced, written or said."""
        self._end(signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """User and system time of all threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def memory(self) -> Memory:
        info = psutil.Process(self.process.pid).memory_full_info()
        return Memory(info.rss / 2**20, info.pss / 2**20)

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def _await_listening(self, began: float) -> None:
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log_text()[-3000:]}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            if time.monotonic() - began > START_SECONDS_MAX:
                raise RuntimeError(f"{self.name} does not listen:\n{self.log_text()[-3000:]}")
            time.sleep(0.01)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


class Ours(Broker):
    """The broker of this checkout."""

    name = "ours"
    settings: Mapping[str, object] = {}  # beside the defaults

    def prepare(self) -> None:
        (self.port,) = free_ports(1)

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "log_broker", "--data-dir", str(self.data_dir), "--port", str(self.port)]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.Popen(
            [*words, "--set", self.cleaner_setting], cwd=ROOT, env=environment, stdout=log, stderr=log
        )


class Kafka(Broker):
    """Apache Kafka from the jars in `libs`."""

    name = "Kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._properties = folder / "server.properties"

    def prepare(self) -> None:
        self.port, controller = free_ports(2)
        self._properties.write_text(
            KAFKA_PROPERTIES.format(
                port=self.port, controller=controller, data=self.data_dir, more=self.cleaner_setting
            )
        )
        done = run_kafka("kafka.tools.StorageTool", "format", "-t", KAFKA_ID, "-c", self._properties)
        if done.returncode:
            raise RuntimeError(f"Kafka's data directory could not be formatted:\n{done.stdout}{done.stderr}")

    def spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = kafka_command("kafka.Kafka", self._properties, jvm=KAFKA_FLAGS)
        return subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def acknowledge_one(address: str, deadline: float) -> None:
    """Produce one record with acks=all to a topic that is made by that, and return once it is acknowledged."""
    quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "topic.metadata.refresh.fast.interval.ms": 10}
    settings = {"bootstrap.servers": address, "acks": "all", "linger.ms": 0, "retry.backoff.ms": 10, "log_level": 0}
    producer = Producer({**settings, **quick, "allow.auto.create.topics": True})
    results: list[object] = []
    producer.produce("first-record", b"value", on_delivery=lambda error, _: results.append(error))
    producer.flush(max(deadline - time.monotonic(), 0.1))
    if results != [None]:
        raise KafkaException(results[0] if results else "no acknowledgement came")


def remove(folder: Path) -> None:
    """Remove a broker's folder."""
    shutil.rmtree(folder, ignore_errors=True)
