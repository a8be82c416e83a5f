"""
Asking a port who answers there, and whether it is well.

One Metadata request (version 2, https://kafka.apache.org/protocol#The_Messages_Metadata) over a plain socket: no
client library is loaded, so that a question costs a millisecond. The same with DescribeLogDirs for the state of disks.
A platform that is secured is asked over a link that signs in.
"""

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.errors import FluvialError
from fluvial.local.state import NodeSpec, Platform, client_properties

if TYPE_CHECKING:
    from fluvial.kafka import KafkaCluster

TIMEOUT_SECONDS = 2.0
RESPONSE_BYTES_MAX = 1 << 20

_METADATA = 3
_CORRELATION = 0x666C7576
_CLIENT = b"fluvial"
# Size, then API key, API version, correlation id, client id, and an empty list of topics: brokers only.
_REQUEST = struct.pack(
    f">i hhi h{len(_CLIENT)}s i", 4 + 8 + len(_CLIENT) + 2, _METADATA, 2, _CORRELATION, len(_CLIENT), _CLIENT, 0
)
# The same of DescribeLogDirs, version 1: no topic, so that the answer is a line for each directory.
_LOG_DIRS_REQUEST = struct.pack(
    f">i hhi h{len(_CLIENT)}s i", 4 + 8 + len(_CLIENT) + 2, 35, 1, _CORRELATION, len(_CLIENT), _CLIENT, 0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Kafka cluster answered: its id and the addresses of its brokers by their ids."""

    cluster_id: str | None
    brokers: dict[int, tuple[str, int]]

    def has(self, node: NodeSpec) -> bool:
        """Whether `node` is registered here at its own address."""
        return self.brokers.get(node.id) == (node.host, node.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """Something listens, and it is no Kafka broker, or one that does not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nobody:
    """Nothing listens."""


Answer = Cluster | Stranger | Nobody


def ask(
    host: str, port: int, timeout_seconds: float = TIMEOUT_SECONDS, *, access: "KafkaCluster | None" = None
) -> Answer:
    """
    Ask who answers on a port; never raises, and never takes longer than the timeout.

    `access` has the client properties of a platform that is secured.
    """
    if access is not None:
        return _ask_secured(f"{host}:{port}", access, timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            try:
                connection.sendall(_REQUEST)
                (size,) = struct.unpack(">i", _receive(connection, 4, deadline))
                if not 0 < size <= RESPONSE_BYTES_MAX:
                    return Stranger()
                return _parse(_receive(connection, size, deadline))
            except (OSError, ValueError, struct.error):
                return Stranger()
    except OSError:
        return Nobody()


def access_of(data_dir: Path) -> "KafkaCluster | None":
    """Return how a secured platform is asked, None for one in plain text; raises ConfigError for a damaged file."""
    path = client_properties(data_dir)
    if path is None:
        return None
    from fluvial.client_settings import kafka_properties_of
    from fluvial.kafka import KafkaCluster

    return KafkaCluster("", kafka_properties_of(path))


def cluster_of(data_dir: Path, platform: Platform) -> "KafkaCluster":
    """Return the cluster of a local platform as its clients reach it; raises ConfigError for a damaged file."""
    from fluvial.kafka import KafkaCluster

    access = access_of(data_dir)
    if access is None:
        return KafkaCluster(platform.bootstrap_servers)
    return KafkaCluster(platform.bootstrap_servers, access.properties)


def is_up(
    node: NodeSpec,
    cluster_id: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
    *,
    access: "KafkaCluster | None" = None,
) -> bool:
    """Whether that very node answers on its port."""
    answer = ask(node.host, node.port, timeout_seconds, access=access)
    return isinstance(answer, Cluster) and answer.cluster_id == cluster_id and answer.has(node)


def offline_log_dirs(
    host: str, port: int, timeout_seconds: float = TIMEOUT_SECONDS, *, access: "KafkaCluster | None" = None
) -> tuple[str, ...]:
    """Return the directories of a broker that failed it; none where it does not answer."""
    if access is not None:
        return _offline_log_dirs_secured(f"{host}:{port}", access, timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(_LOG_DIRS_REQUEST)
            (size,) = struct.unpack(">i", _receive(connection, 4, deadline))
            if not 0 < size <= RESPONSE_BYTES_MAX:
                return ()
            return tuple(_failed_directories(_receive(connection, size, deadline)))
    except (OSError, ValueError, struct.error):
        return ()


def _ask_secured(address: str, access: "KafkaCluster", timeout_seconds: float) -> Answer:
    from fluvial.cluster.wire import BrokerLink
    from log_broker.wire.apis import ApiKey

    try:
        link = BrokerLink(address, access, timeout_seconds)
    except ConnectionRefusedError:
        return Nobody()
    except (OSError, FluvialError):
        return Stranger()
    try:
        topics = {"topics": (), "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        answer = link.ask(ApiKey.METADATA, topics)
    except (OSError, FluvialError):
        return Stranger()
    finally:
        link.close()
    brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
    return Cluster(cluster_id=answer.cluster_id, brokers=brokers)


def _offline_log_dirs_secured(address: str, access: "KafkaCluster", timeout_seconds: float) -> tuple[str, ...]:
    from fluvial.cluster.wire import BrokerLink
    from log_broker.wire.apis import ApiKey

    try:
        link = BrokerLink(address, access, timeout_seconds)
        try:
            answer = link.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": ()})
        finally:
            link.close()
    except (OSError, FluvialError):
        return ()
    return tuple(each.log_dir for each in answer.results if each.error_code)


def registry_answers(
    host: str, port: int, timeout_seconds: float = TIMEOUT_SECONDS, *, access: "KafkaCluster | None" = None
) -> bool:
    """Whether a schema registry answers on a port, by TLS that `access` verifies where that is given."""
    deadline = time.monotonic() + timeout_seconds
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            if access is None:
                return _status_of(connection, host, port, deadline) == b"200"
            from fluvial.kafka.tls import tls_context

            with tls_context(access.properties).wrap_socket(connection, server_hostname=host) as secured:
                # Nobody says who asks: that it wants to know it is answer enough.
                return _status_of(secured, host, port, deadline) in {b"200", b"401"}
    except (OSError, ValueError):
        return False


def _status_of(connection: socket.socket, host: str, port: int, deadline: float) -> bytes:
    connection.sendall(f"GET /schemas/types HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
    return _receive(connection, 12, deadline)[-3:]


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ValueError("closed in the middle of an answer")
        received += chunk
    return bytes(received)


def _parse(body: bytes) -> Cluster | Stranger:
    """Read brokers `[id, host, port, rack]` and the cluster's id; what follows is not needed."""
    correlation, count = struct.unpack_from(">ii", body, 0)
    if correlation != _CORRELATION:
        return Stranger()
    at, brokers = 8, {}
    for _ in range(count):
        (node_id,) = struct.unpack_from(">i", body, at)
        host, at = _string(body, at + 4)
        (port,) = struct.unpack_from(">i", body, at)
        _, at = _string(body, at + 4)
        brokers[node_id] = (host or "", port)
    cluster_id, _ = _string(body, at)
    return Cluster(cluster_id=cluster_id, brokers=brokers)


def _failed_directories(body: bytes) -> Iterator[str]:
    """Read `[error, path, topics]` behind the correlation id and the throttle time; there are no topics."""
    _, _, count = struct.unpack_from(">iii", body, 0)
    at = 12
    for _ in range(count):
        (error,) = struct.unpack_from(">h", body, at)
        path, at = _string(body, at + 2)
        at += 4
        if error != 0:
            yield path or "?"


def _string(body: bytes, at: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", body, at)
    start, end = at + 2, at + 2 + max(length, 0)
    return (None if length < 0 else body[start:end].decode()), end
