"""
What a local platform is made of, kept in `<data directory>/platform.json`.

The file says which nodes there should be, never which are running: that is asked of the nodes themselves.
"""

import base64
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from fluvial.errors import ConfigError

FILE = "platform.json"
HOST = "127.0.0.1"
"""Nodes of a local platform are not offered to the network: they ask for no password."""

PORT_DEFAULT = 9092
REGISTRY_PORT_DEFAULT = 8081


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node; a port of None is of what it does not serve, `data_dir` is relative to the platform's."""

    id: int
    host: str
    port: int
    registry_port: int | None
    data_dir: str
    metrics_port: int | None = None

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus finds the node's metrics."""
        return None if self.metrics_port is None else f"http://{self.host}:{self.metrics_port}/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The nodes of one data directory, in the order of their ids; the first serves the registry."""

    cluster_id: str
    nodes: tuple[NodeSpec, ...]

    @classmethod
    def planned(cls, *, brokers: int, port: int, registry_port: int, metrics_port: int | None = None) -> Self:
        """Return a platform with a new cluster id and its nodes on consecutive ports."""
        return cls(cluster_id=_new_cluster_id(), nodes=_nodes(brokers, port, registry_port, metrics_port))

    def with_layout(self, *, brokers: int, port: int, registry_port: int, metrics_port: int | None = None) -> Self:
        """Return the same cluster with so many nodes on these ports; the nodes keep their folders."""
        return replace(self, nodes=_nodes(brokers, port, registry_port, metrics_port))

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, as Kafka clients take them."""
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self.nodes[0].port

    @property
    def registry_port(self) -> int:
        """The port of the registry."""
        return next(node.registry_port for node in self.nodes if node.registry_port is not None)

    @property
    def metrics_port(self) -> int | None:
        """The port of the first node's metrics, None where none are served."""
        return self.nodes[0].metrics_port

    @property
    def registry_url(self) -> str:
        """The address of the registry."""
        return f"http://{self.nodes[0].host}:{self.registry_port}"

    @classmethod
    def load(cls, data_dir: Path) -> Self | None:
        """Read the platform of `data_dir`, None where there is none; raises ConfigError for a damaged file."""
        path = data_dir / FILE
        try:
            return cls._of(json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: not a platform's description ({error!r}); mend it, or name another folder with --data-dir"
            ) from error

    @classmethod
    def _of(cls, read: Mapping[str, Any]) -> Self:
        nodes = tuple(
            NodeSpec(
                id=int(node["id"]),
                host=str(node["host"]),
                port=int(node["port"]),
                registry_port=None if node["registry_port"] is None else int(node["registry_port"]),
                data_dir=str(node["data_dir"]),
                metrics_port=None if node.get("metrics_port") is None else int(node["metrics_port"]),
            )
            for node in read["nodes"]
        )
        if not nodes or nodes[0].registry_port is None:
            raise ValueError("no node serves the registry")
        return cls(cluster_id=str(read["cluster_id"]), nodes=nodes)

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


def _nodes(brokers: int, port: int, registry_port: int, metrics_port: int | None) -> tuple[NodeSpec, ...]:
    return tuple(
        NodeSpec(
            id=index,
            host=HOST,
            port=port + index,
            registry_port=registry_port if index == 0 else None,
            data_dir=f"node-{index}",
            metrics_port=None if metrics_port is None else metrics_port + index,
        )
        for index in range(brokers)
    )


def _new_cluster_id() -> str:
    """Return 16 random bytes as Kafka writes ids; one that starts with `-` would read as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text
