"""
What a local platform is made of, kept in `<data directory>/platform.json`.

The file says which nodes there should be, never which are running: that is asked of the nodes themselves.
"""

import base64
import ipaddress
import json
import os
import socket
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fluvial.errors import ConfigError

FILE = "platform.json"
SECURITY = "security"
"""The folder of a platform's certificates and of the files for its nodes and clients."""
HOST = "127.0.0.1"
"""Nodes of a local platform are not offered to the network: they ask for no password."""

OPEN_TO_THE_NETWORK = (
    "open to the network: whoever reaches {} can read, write and administer everything there, for nothing asks who "
    "they are; see docs/cluster.md"
)

PORT_DEFAULT = 9092
REGISTRY_PORT_DEFAULT = 8081
VOTERS = 3
"""How many nodes elect the controller where there are so many: one may die. With fewer nodes the first is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """
    One node; a port of None is of what it does not serve, `data_dir` is relative to the platform's.

    A `founder` was among the voters when the cluster began. Who votes now the cluster itself says. A node of a platform
    that is `secured` serves its registry by HTTPS.
    """

    id: int
    host: str
    port: int
    registry_port: int | None
    data_dir: str
    metrics_port: int | None = None
    founder: bool = False
    secured: bool = False

    @property
    def address(self) -> str:
        """Where its broker listens, as Kafka clients take it."""
        return f"{self.host}:{self.port}"

    @property
    def registry_url(self) -> str | None:
        """Where its schema registry answers."""
        scheme = "https" if self.secured else "http"
        return None if self.registry_port is None else f"{scheme}://{self.host}:{self.registry_port}"

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus finds the node's metrics."""
        return None if self.metrics_port is None else f"http://{self.host}:{self.metrics_port}/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """
    The nodes of one data directory, in the order of their ids. An id is not given twice: its folder holds data.

    Each is started with `settings`, of brokers by Kafka's names.
    """

    cluster_id: str
    nodes: tuple[NodeSpec, ...]
    next_id: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def planned(
        cls,
        *,
        brokers: int,
        port: int,
        registry_port: int,
        metrics_port: int | None = None,
        secured: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a platform with a new cluster id and its nodes on consecutive ports."""
        founders = VOTERS if brokers >= VOTERS else 1
        nodes = tuple(
            NodeSpec(
                id=number,
                host=HOST,
                port=port + number,
                registry_port=registry_port + number,
                data_dir=f"node-{number}",
                metrics_port=None if metrics_port is None else metrics_port + number,
                founder=number < founders,
                secured=secured,
            )
            for number in range(brokers)
        )
        return cls(cluster_id=_new_cluster_id(), nodes=nodes, next_id=brokers, settings=dict(settings or {}))

    def with_layout(
        self,
        *,
        brokers: int,
        port: int,
        registry_port: int,
        metrics_port: int | None = None,
        registry_on: Collection[int] = (),
    ) -> Self:
        """
        Return the same cluster with so many nodes, no fewer than it has; ports are counted from these by ids.

        Once only the first node served the registry. One of then that serves none begins to if it is in `registry_on`.
        """
        added = range(self.next_id, self.next_id + max(brokers - len(self.nodes), 0))
        fresh = (
            NodeSpec(
                id=number,
                host=HOST,
                port=0,
                registry_port=0,
                data_dir=f"node-{number}",
                secured=self.nodes[0].secured,
            )
            for number in added
        )
        nodes = tuple(
            replace(
                node,
                port=port + node.id,
                registry_port=(
                    None if node.registry_port is None and node.id not in registry_on else registry_port + node.id
                ),
                metrics_port=None if metrics_port is None else metrics_port + node.id,
            )
            for node in (*self.nodes, *fresh)
        )
        return replace(self, nodes=nodes, next_id=self.next_id + len(added))

    def without(self, node_id: int) -> Self:
        """Return the same cluster without one of its nodes."""
        return replace(self, nodes=tuple(node for node in self.nodes if node.id != node_id))

    @property
    def founders(self) -> tuple[NodeSpec, ...]:
        """The nodes that were voters when the cluster began."""
        return tuple(node for node in self.nodes if node.founder)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, as Kafka clients take them."""
        return ",".join(node.address for node in self.nodes)

    @property
    def port(self) -> int:
        """The port of node 0, whether there still is one or not."""
        return self.nodes[0].port - self.nodes[0].id

    @property
    def registry_port(self) -> int:
        """The port of node 0's registry, whether there still is one or not."""
        return next(node.registry_port - node.id for node in self.nodes if node.registry_port is not None)

    @property
    def metrics_port(self) -> int | None:
        """The port of node 0's metrics, None where none are served."""
        first = self.nodes[0]
        return None if first.metrics_port is None else first.metrics_port - first.id

    @property
    def registry_url(self) -> str:
        """The addresses of the registry on all nodes, as Confluent's clients take them."""
        return ",".join(node.registry_url for node in self.nodes if node.registry_url is not None)

    @classmethod
    def load(cls, data_dir: Path) -> Self | None:
        """Read the platform of `data_dir`, None where there is none; raises ConfigError for a damaged file."""
        path = data_dir / FILE
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            return cls._of(read, secured=client_properties(data_dir) is not None)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}: not a platform's description ({error!r}); repair it, or name another folder with --data-dir"
            ) from error

    @classmethod
    def _of(cls, read: Mapping[str, Any], *, secured: bool) -> Self:
        nodes = tuple(
            NodeSpec(
                id=int(node["id"]),
                host=str(node["host"]),
                port=int(node["port"]),
                registry_port=None if node["registry_port"] is None else int(node["registry_port"]),
                data_dir=str(node["data_dir"]),
                metrics_port=None if node.get("metrics_port") is None else int(node["metrics_port"]),
                # Before there were voters, the first node decided for all.
                founder=bool(node.get("founder", int(node["id"]) == 0)),
                secured=secured,
            )
            for node in read["nodes"]
        )
        if not any(node.registry_port is not None for node in nodes):
            raise ValueError("no node serves the registry")
        next_id = int(read.get("next_id", max(node.id for node in nodes) + 1))
        settings = {str(name): str(value) for name, value in read.get("settings", {}).items()}
        return cls(cluster_id=str(read["cluster_id"]), nodes=nodes, next_id=next_id, settings=settings)

    def save(self, data_dir: Path) -> None:
        """Write the description whole or not at all; raises OSError."""
        scratch = data_dir / f".{FILE}.{os.getpid()}"
        try:
            with scratch.open("w", encoding="utf-8") as file:
                json.dump(asdict(self), file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(data_dir / FILE)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise


def settings_of_one_machine(nodes: int) -> dict[str, str]:
    """
    The settings of nodes that are to use all cores of one machine.

    Copies of a record on one machine would go with it, and cost what the cores are for; where nodes of another machine
    join, a topic that asks for copies has them on as many machines as it can.
    """
    return {"num.partitions": str(nodes), "default.replication.factor": "1", "broker.rack": socket.gethostname()}


def server_properties(data_dir: Path) -> Path | None:
    """Return the file that nodes of a secured platform are started with, None for one in plain text."""
    path = data_dir.absolute() / SECURITY / "server.properties"
    return path if path.exists() else None


def client_properties(data_dir: Path) -> Path | None:
    """Return the file by which clients reach a secured platform, None for one in plain text."""
    path = data_dir.absolute() / SECURITY / "client.properties"
    return path if path.exists() else None


def is_loopback(host: str) -> bool:
    """Whether a process that listens on `host` is reached from its own machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _new_cluster_id() -> str:
    """Return 16 random bytes as Kafka writes ids; one that starts with `-` would read as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text
