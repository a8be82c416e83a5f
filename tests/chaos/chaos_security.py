"""
How the clients of this process speak to the cluster under test: in plain text, or as one that is secured asks for.

A secured cluster has SASL_SSL alone, on every link; nodes are the user `node`, and clients are `chaos`, whose rights
are ACLs. Certificates are made anew for each cluster.
"""

import socket
import ssl
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "unit/log_broker/server/net"))

from certificates import Authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.scram import ScramClient
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

NODES, CLIENTS = ("node", "between"), ("chaos", "outside")
RESOURCES = (
    (ResourceType.TOPIC, "*"),
    (ResourceType.GROUP, "*"),
    (ResourceType.TRANSACTIONAL_ID, "*"),
    (ResourceType.BROKER, "kafka-cluster"),
)


@dataclass
class Manner:
    """What stock clients are given besides addresses, the observer's as well, and how raw requests connect."""

    client: dict[str, str] = field(default_factory=dict)
    observer: dict[str, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None

    def connect(self, address: tuple[str, int], seconds: float) -> socket.socket:
        """Return a connection that may be spoken on; raises OSError."""
        plain = socket.create_connection(address, timeout=seconds)
        if self.context is None:
            return plain
        try:
            secured = self.context.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise
        try:
            _sign_in(secured)
        except BaseException:
            secured.close()
            raise
        return secured


MANNER = Manner()
"""That of all clients here: one cluster is under test at a time."""


class Security:
    """What the nodes of one cluster are given."""

    def __init__(self, folder: Path, host: str) -> None:
        """`host` is the address that nodes and clients dial."""
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(folder)
        self._certificate = self._authority.issue("node", host=host)

    def node_file(self, path: Path) -> Path:
        """Write what a node is started with; return the file."""
        name, password = NODES
        users = f'user_{CLIENTS[0]}="{CLIENTS[1]}"'
        settings = {
            "security.inter.broker.protocol": "SASL_SSL",
            "ssl.keystore.location": self._certificate,
            "ssl.truststore.location": self._authority.path,
            "sasl.jaas.config": f'x required username="{name}" password="{password}" {users};',
            "authorizer.class.name": "fluvial",
            "super.users": f"User:{name}",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def take_over(self) -> None:
        """Have all clients of this process speak so."""
        MANNER.client, MANNER.observer = self._settings(*CLIENTS), self._settings(*NODES)
        MANNER.context = ssl.create_default_context(cafile=str(self._authority.path))

    def allow(self, admin: AdminClient) -> None:
        """Give clients their rights."""
        acls = [
            AclBinding(
                resource,
                name,
                ResourcePatternType.LITERAL,
                f"User:{CLIENTS[0]}",
                "*",
                AclOperation.ALL,
                AclPermissionType.ALLOW,
            )
            for resource, name in RESOURCES
        ]
        for made in admin.create_acls(acls).values():
            made.result(30)

    def _settings(self, name: str, password: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self._authority.path),
        }


def speak_plainly() -> None:
    """Have clients speak in plain text again."""
    MANNER.client, MANNER.observer, MANNER.context = {}, {}, None


def _sign_in(connection: socket.socket) -> None:
    name, password = NODES
    scram = ScramClient(ScramMechanism.SHA_256, name, password.encode(), nonce=str(time.monotonic_ns()))
    _ask(connection, ApiKey.SASL_HANDSHAKE, {"mechanism": ScramMechanism.SHA_256})
    first = _ask(connection, ApiKey.SASL_AUTHENTICATE, {"auth_bytes": scram.first()})
    _ask(connection, ApiKey.SASL_AUTHENTICATE, {"auth_bytes": scram.final(first)})


def _ask(connection: socket.socket, api: ApiKey, values: dict[str, object]) -> bytes:
    request = bytes(write_request(api, 1, 1, "observer/chaos", values))
    connection.sendall(struct.pack(">i", len(request)) + request)
    answer = exactly(connection, struct.unpack(">i", exactly(connection, 4))[0])
    told = read_response(api, 1, memoryview(answer)[4:])
    if told.error_code:
        raise ConnectionRefusedError(f"sign-in: error {told.error_code}")
    return bytes(getattr(told, "auth_bytes", b""))


def exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes; raises OSError where the connection ends before that."""
    parts = b""
    while len(parts) < size:
        data = connection.recv(size - len(parts))
        if not data:
            raise ConnectionResetError("the node closed the connection")
        parts += data
    return parts
