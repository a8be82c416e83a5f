"""
One node of a cluster under test, a process of its own: ours, or Apache Kafka's as the peer.

A node listens on 127.0.0.1 and says it is on 127.0.0.2, at the same ports, where its proxies are (`chaos_links`).
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.cost_meter import TURN_SECONDS_MAX, Meter
from tests.peers.kafka_jars import kafka_command, run_kafka

ROOT = Path(__file__).parents[2]
BEHIND_PROXY = "127.0.0.1"
PROXY = "127.0.0.2"
STOP_SECONDS_MAX = 60.0
MEASURED = 1  # the node whose turns are
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
KAFKA_FLAGS = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# Failures are noticed within seconds, so that a scenario need not wait for them as long as a service may.
QUICK = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
}

# What Kafka has to be told, and ours has no setting for: it is so by default.
KAFKA_ALONE = {
    "replica.fetch.wait.max.ms": "250",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "log.initial.task.delay.ms": "500",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter of the metadata quorum, and where its proxy is."""

    node_id: int
    port: int


class NodeProcess(ABC):
    """A node with its data under `folder`; it can be killed, paused and started again."""

    def __init__(self, folder: Path, node_id: int, roles: str, ports: tuple[int, int]) -> None:
        """`roles` is "broker", "controller" or "broker,controller"; `ports` are those of clients and of the quorum."""
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_path = folder / "log"
        self.node_id = node_id
        self.roles = roles
        self.port, self.quorum_port = ports
        self.settings: dict[str, str] = {}
        self.voters: tuple[Voter, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)

    @property
    def name(self) -> str:
        return str(self.node_id)

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"node {self.node_id} does not run"
        return self._process.pid

    @property
    def address(self) -> str | None:
        """The address that all its connections come from, None where it has none of its own."""
        return None

    @property
    def proxied_ports(self) -> set[int]:
        """The ports behind which it is."""
        ports = {self.port} if self.is_broker else set()
        return ports | ({self.quorum_port} if "controller" in self.roles else set())

    def prepare(self) -> None:  # noqa: B027 a node may need nothing of it
        """Do what is done once before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The words that start it."""

    def start(self) -> None:
        """Start the process; it may take a while until it serves."""
        assert self._process is None
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def environment(self) -> dict[str, str]:
        """What its environment has besides ours."""
        return {}

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: a controlled shutdown."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Take its disk away: the directory is empty as on the first day."""
        assert self._process is None
        shutil.rmtree(self.data_dir)
        self.prepare()

    def died(self) -> str | None:
        """What its log ends with, if the process has ended by itself."""
        if self._process is None or self._process.poll() is None:
            return None
        return f"node {self.node_id} ended with {self._process.returncode}:\n{self.log_text()[-3000:]}"

    def long_turns(self) -> list[str]:
        """Say which turns of its event loop took longer than one may, where they are measured."""
        return []

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def partition_dir(self, topic: str, partition: int) -> Path:
        return self.data_dir / f"{topic}-{partition}"

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        with suppress(ProcessLookupError):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class OurNode(NodeProcess):
    """`python -m log_broker`, with faults of its clock and its disk at hand. One port serves clients and the quorum."""

    def __init__(self, folder: Path, node_id: int, roles: str, ports: tuple[int, int]) -> None:
        super().__init__(folder, node_id, roles, (ports[0], ports[0]))
        self._faults: dict[str, Any] = {}
        self._faults_path = folder / "faults.json"
        self.config_file: Path | None = None  # of a node that is secured
        (folder / "synced").mkdir()
        self._tell_faults()

    def command(self) -> list[str]:
        words = [sys.executable, str(Path(__file__).with_name("chaos_node_process.py"))]
        words += ["--data-dir", str(self.data_dir), "--node-id", str(self.node_id), "--cluster-id", CLUSTER_ID]
        words += ["--host", BEHIND_PROXY, "--advertised-host", PROXY, "--port", str(self.port)]
        words += ["--process-roles", self.roles]
        voters = ",".join(f"{voter.node_id}@{PROXY}:{voter.port}" for voter in self.voters)
        words += ["--controller-quorum-voters", voters]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        if self.config_file is not None:
            words += ["--config", str(self.config_file)]
        return words

    @property
    def address(self) -> str | None:
        return f"127.0.1.{self.node_id}"

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(ROOT / "platform"), str(ROOT), os.environ.get("PYTHONPATH", "")))
        return {
            "PYTHONPATH": path,
            "FLUVIAL_CHAOS_FAULTS": str(self.folder),
            "FLUVIAL_CHAOS_ADDRESS": self.address or "",
            "FLUVIAL_CHAOS_METER": str(self.folder / f"meter-{time.monotonic_ns()}") if self.is_measured else "",
        }

    @property
    def is_measured(self) -> bool:
        """Whether the turns of its event loop are measured, which takes another loop than production's."""
        return self.node_id == MEASURED

    def long_turns(self) -> list[str]:
        meters = [Meter(path) for path in sorted(self.folder.glob("meter-*"))]
        return [
            f"a turn of the event loop of node {self.name} took {meter.longest * 1e3:.0f} ms of CPU: {meter.where}"
            for meter in meters
            if meter.longest > TURN_SECONDS_MAX
        ]

    def fault(self, **faults: Any) -> None:
        """Set `clock_ms` or `disk_full` (`chaos_node_process`)."""
        self._faults.update(faults)
        self._tell_faults()

    def lose_power(self) -> int:
        """End at once and cut off what no sync has carried to the disk; return how many bytes of logs that is."""
        self.kill()
        lost = 0
        for ledger in (self.folder / "synced").iterdir():
            path = Path(ledger.name.replace("%", "/"))
            held = ledger.read_bytes()
            synced = struct.unpack(">q", held)[0] if held else 0
            if path.exists() and path.stat().st_size > synced:
                lost += path.stat().st_size - synced
                os.truncate(path, synced)
        return lost

    def _tell_faults(self) -> None:
        new = self._faults_path.with_suffix(".new")
        new.write_text(json.dumps(self._faults))
        new.replace(self._faults_path)


class KafkaNode(NodeProcess):
    """Apache Kafka in KRaft mode."""

    def prepare(self) -> None:
        properties = {**KAFKA_ALONE, **self.settings, **self._identity()}
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        done = run_kafka("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", path)
        if done.returncode:
            raise RuntimeError(f"Kafka's data directory could not be formatted:\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        return kafka_command("kafka.Kafka", self.folder / "server.properties", jvm=KAFKA_FLAGS)

    def _identity(self) -> dict[str, str]:
        listeners = [("PLAINTEXT", self.port)] if self.is_broker else []
        if "controller" in self.roles:
            listeners.append(("CONTROLLER", self.quorum_port))
        advertised = ",".join(f"{name}://{PROXY}:{port}" for name, port in listeners)
        found = {
            "process.roles": self.roles,
            "node.id": str(self.node_id),
            "log.dirs": str(self.data_dir),
            "controller.quorum.voters": ",".join(f"{v.node_id}@{PROXY}:{v.port}" for v in self.voters),
            "listeners": ",".join(f"{name}://{BEHIND_PROXY}:{port}" for name, port in listeners),
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }
        if self.is_broker:
            found["inter.broker.listener.name"] = "PLAINTEXT"
        return found
