"""
Connections that come, sign in and go, from a process of its own: `python -m tests.bench.broker.sign_in_load JSON`.

Says `ready`, waits for a line, and answers with a line of JSON.
"""

import json
import socket
import ssl
import struct
import sys
import threading
import time
from typing import Any, NamedTuple

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.plain import PLAIN
from log_broker.core.security.scram import ScramClient
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

THREADS = 8


class Load(NamedTuple):
    """By which mechanism, "" for none, and for how long."""

    address: str
    mechanism: str
    user: str
    password: str
    seconds: float
    authority: str = ""  # the file of the certificates by which TLS is spoken, if it is


class Client:
    """Signs in again and again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        host, port = load.address.split(":")
        self._address = host, int(port)
        self._context = ssl.create_default_context(cafile=load.authority) if load.authority else None

    def come_and_go(self) -> None:
        """One connection, from its first packet to its last."""
        connection = socket.create_connection(self._address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_hostname=self._address[0])
        with connection:
            self._sign_in(connection)

    def _sign_in(self, connection: socket.socket) -> None:
        load = self._load
        if not load.mechanism:
            _ask(connection, ApiKey.API_VERSIONS, 0, {})
            return
        _ask(connection, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": load.mechanism})
        if load.mechanism == PLAIN:
            _token(connection, f"\0{load.user}\0{load.password}".encode())
            return
        scram = ScramClient(
            ScramMechanism(load.mechanism), load.user, load.password.encode(), nonce=str(time.time_ns())
        )
        scram.verify(_token(connection, scram.final(_token(connection, scram.first()))))


def _token(connection: socket.socket, token: bytes) -> bytes:
    return bytes(_ask(connection, ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token}).auth_bytes)


def _ask(connection: socket.socket, api: ApiKey, version: int, values: dict[str, object]) -> Any:
    request = bytes(write_request(api, version, 1, "bench", values))
    connection.sendall(struct.pack(">i", len(request)) + request)
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = connection.recv(65536)
        if not more:
            raise RuntimeError("the broker closed the connection")
        data += more
    answer = read_response(api, version, memoryview(data)[8:])
    if answer.error_code:
        raise RuntimeError(f"{api.name}: error {answer.error_code}")
    return answer


def run(load: Load) -> dict[str, Any]:
    """Come and go until the time is over."""
    client = Client(load)
    began = time.perf_counter()
    counts = [0] * THREADS

    def work(number: int) -> None:
        while time.perf_counter() < began + load.seconds:
            client.come_and_go()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"messages": sum(counts), "seconds": time.perf_counter() - began}


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    Client(load).come_and_go()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(load)), flush=True)


if __name__ == "__main__":
    main()
