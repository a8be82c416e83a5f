"""
Requests of the Kafka protocol that client libraries do not offer: reassignments, the quorum, log directories.

Works against any Kafka cluster: a version is agreed on with each broker, and a broker passes on to the controller what
only that decides.
"""

import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from fluvial.cluster.sign_in import RejectedError, SignInError, tls_of, tokens
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from log_broker.errors import ErrorCode
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request
from log_broker.wire.reading import MalformedRequestError

TIMEOUT_SECONDS = 10.0
RESPONSE_BYTES_MAX = 256 << 20
CLIENT_ID = "fluvial"
_RETRY_SECONDS = 0.2
_LENGTH = struct.Struct(">i")

# The newest version of each request whose fields we give; a broker that knows none up to that is asked nothing.
_VERSIONS: Mapping[ApiKey, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.METADATA: 12,
    ApiKey.API_VERSIONS: 4,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.DESCRIBE_QUORUM: 2,
    ApiKey.UNREGISTER_BROKER: 0,
    ApiKey.ADD_RAFT_VOTER: 1,
    ApiKey.REMOVE_RAFT_VOTER: 0,
    ApiKey.UPDATE_FEATURES: 2,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
}
_PASSING = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class WireError(FluvialError):
    """A broker does not answer, or does not know the request."""


class RefusedError(FluvialError):
    """The cluster refused a request; `code` says why."""

    def __init__(self, doing: str, code: int, message: str | None = None) -> None:
        name = ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"
        super().__init__(f"cannot {doing}: {message.rstrip('.') if message else name.lower().replace('_', ' ')}")
        self.code = code


def is_passing(code: int) -> bool:
    """Whether the same request may succeed a moment later: the controller is being elected."""
    return code in _PASSING


class BrokerLink:
    """One connection to one broker of a cluster, one request at a time."""

    def __init__(self, address: str, cluster: KafkaCluster, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """
        Connect as the cluster wants it and ask which versions the broker knows.

        Raises OSError or WireError, and SignInError for a broker that does not let us in or is not trusted.
        """
        host, _, port = address.rpartition(":")
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._correlation_id = 0
        tls = tls_of(cluster)
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_seconds)
        try:
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host.strip("[]"))
            if cluster.protocol.startswith("SASL"):
                self._sign_in(cluster)
            answer = self._exchange(ApiKey.API_VERSIONS, 0, {})
            self._known: dict[int, tuple[int, int]] = {
                each.api_key: (each.min_version, each.max_version) for each in answer.api_keys
            }
        except ssl.SSLError as error:
            self._socket.close()
            raise SignInError(
                f"no TLS with {address} ({error.reason or error}); check security.protocol and the ssl. properties"
            ) from error
        except BaseException:
            self._socket.close()
            raise

    def _sign_in(self, cluster: KafkaCluster) -> None:
        mechanism = cluster.properties.get("sasl.mechanism")
        answer = self._exchange(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        if answer.error_code:
            raise SignInError(f"{self.address} knows no {mechanism}, but {', '.join(answer.mechanisms)}")
        steps = tokens(cluster)
        token = next(steps)
        with suppress(StopIteration):
            while True:
                answer = self._exchange(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token})
                if answer.error_code:
                    why = answer.error_message or "no reason given"
                    raise RejectedError(f"{self.address} rejects the credentials: {why}")
                token = steps.send(answer.auth_bytes)

    def ask(self, api: ApiKey, values: Mapping[str, Any]) -> Any:
        """Send a request and return its answer; raises OSError or WireError."""
        least, most = self._known.get(api, (1, 0))
        version = min(most, _VERSIONS[api])
        if version < least:
            raise WireError(f"the broker at {self.address} does not know {api.name.title().replace('_', '')}")
        return self._exchange(api, version, values)

    def close(self) -> None:
        self._socket.close()

    def _exchange(self, api: int, version: int, values: Mapping[str, Any]) -> Any:
        self._correlation_id += 1
        request = write_request(api, version, self._correlation_id, CLIENT_ID, values)
        deadline = time.monotonic() + self._timeout_seconds
        self._socket.settimeout(self._timeout_seconds)
        self._socket.sendall(_LENGTH.pack(len(request)) + request)
        (length,) = _LENGTH.unpack(self._receive(4, deadline))
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            raise WireError(f"{self.address} does not answer in the Kafka protocol")
        try:
            return read_response(api, version, memoryview(self._receive(length, deadline))[4:])
        except MalformedRequestError as error:
            raise WireError(f"{self.address}: {error}") from error

    def _receive(self, size: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self._socket.recv(min(size - len(received), 1 << 20))
            if not chunk:
                raise ConnectionResetError(f"{self.address} closed the connection")
            received += chunk
        return bytes(received)


class ClusterLink:
    """A cluster by its bootstrap addresses: whichever broker answers is asked, and the next one when it dies."""

    def __init__(self, cluster: KafkaCluster, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._cluster = cluster
        self.servers = [server.strip() for server in cluster.bootstrap_servers.split(",")]
        self._timeout_seconds = timeout_seconds
        self._links: dict[str, BrokerLink] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def learn(self, addresses: Iterable[str]) -> None:
        """Take in brokers that may be asked as well."""
        self.servers += [address for address in addresses if address not in self.servers]

    def forget(self, address: str) -> None:
        """Ask a broker no more."""
        self.servers = [server for server in self.servers if server != address]
        if (link := self._links.pop(address, None)) is not None:
            link.close()

    def ask(self, api: ApiKey, values: Mapping[str, Any]) -> Any:
        """Ask any broker that answers; raises WireError."""
        failures = []
        # Who has answered before is asked first.
        for address in sorted(self.servers, key=lambda server: server not in self._links):
            try:
                return self.ask_at(address, api, values)
            except OSError as error:
                failures.append(f"{address}: {error.strerror or error}")
        raise WireError(
            f"no Kafka broker answers ({'; '.join(failures)}); name the cluster with --bootstrap-server, and "
            "what it asks of its clients with --command-config"
        )

    def ask_at(self, address: str, api: ApiKey, values: Mapping[str, Any]) -> Any:
        """Ask one broker; raises OSError when it does not answer, or WireError."""
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = BrokerLink(address, self._cluster, self._timeout_seconds)
        try:
            return link.ask(api, values)
        except OSError:
            link.close()
            del self._links[address]
            raise

    def settled(self, doing: str, api: ApiKey, values: Mapping[str, Any]) -> Any:
        """
        Ask until the answer's own error is none that passes by itself, for the timeout at the most.

        Raises RefusedError saying what was being done, or WireError.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            answer = self.ask(api, values)
            if answer.error_code == 0:
                return answer
            if not is_passing(answer.error_code) or time.monotonic() > deadline:
                raise RefusedError(doing, answer.error_code, getattr(answer, "error_message", None))
            time.sleep(_RETRY_SECONDS)
