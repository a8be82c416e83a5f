"""
One-batch Produce requests from a process of its own: `python -m tests.bench.broker.raw_requests JSON`.

It shares the cores with the broker, so it does as little as it can: the requests are bytes made beforehand, all of one
size, and so are the answers (Produce version 7), of which only the error codes are looked at. Says `ready`, waits for
a line, and answers with a line of JSON.
"""

import json
import select
import socket
import ssl
import struct
import sys
import time
from array import array
from collections import deque
from typing import Any, NamedTuple

from log_broker.records.record import build_batch

PRODUCE_VERSION = 7
ERROR_FROM_END = 2 + 8 + 8 + 8 + 4
RECEIVE_BYTES = 64 * 1024


class Load(NamedTuple):
    """Which requests, on how many connections, and for how long."""

    address: str
    topic: str
    partitions: int
    connections: int
    in_flight: int
    acks: int
    value_bytes: int
    seconds: float
    touch_seconds_max: float = 120.0
    records: int = 1  # in the batch of each request
    leaders: tuple[str, ...] = ()  # the address of each partition's leader, where that is not `address`
    authority: str = ""  # the file of the certificates by which TLS is spoken, if it is

    def leader_of(self, partition: int) -> tuple[str, int]:
        host, port = (self.leaders[partition] if self.leaders else self.address).split(":")
        return host, int(port)


def produce_request(topic: str, partition: int, acks: int, value_bytes: int, records: int = 1) -> bytes:
    """One whole request with one batch, its length included."""
    batch = build_batch([(int(time.time() * 1000), None, bytes(value_bytes), ())] * records)
    name = topic.encode()
    body = (
        struct.pack(">hhih", 0, PRODUCE_VERSION, 0, 5)
        + b"bench"
        + struct.pack(">hhii", -1, acks, 30_000, 1)
        + struct.pack(">h", len(name))
        + name
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    return struct.pack(">i", len(body)) + body


def _request(load: Load, partition: int) -> bytes:
    return produce_request(load.topic, partition, load.acks, load.value_bytes, load.records)


def connected(load: Load, address: tuple[str, int]) -> socket.socket:
    """A connection as the load has them."""
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not load.authority:
        return connection
    return ssl.create_default_context(cafile=load.authority).wrap_socket(connection, server_hostname=address[0])


def answer_bytes(topic: str) -> int:
    """Length, correlation id, [name, [index, error, base offset, append time, log start]], throttle time."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8 + 8) + 4


class Pipe:
    """One connection that always has the same number of requests under way."""

    def __init__(self, load: Load, number: int) -> None:
        # A connection stays with one partition when there are few, and goes through all when there are many.
        own = [number % load.partitions] if load.partitions <= load.connections else list(range(load.partitions))
        # With several leaders it goes through those of one of them.
        leader = load.leader_of(number % load.partitions)
        own = [at for at in own if load.leader_of(at) == leader]
        self.socket = connected(load, leader)
        turn = number * len(own) // load.connections
        requests = [_request(load, at) for at in own[turn:] + own[:turn]]
        self._size = len(requests[0])
        self._period = self._size * len(requests)
        while len(requests) < len(own) + load.in_flight:
            requests += requests
        self._ring = memoryview(b"".join(requests))
        self._at = 0
        self._answer = answer_bytes(load.topic)
        self._error_at = self._answer - ERROR_FROM_END
        self._rest = b""
        self._sent_at: deque[float] = deque()
        self.latencies = array("d")

    def send(self, count: int, now: float) -> None:
        """Send the next `count` requests."""
        end = self._at + count * self._size
        self.socket.sendall(self._ring[self._at : end])
        self._at = end % self._period
        self._sent_at.extend([now] * count)

    def receive(self) -> int:
        """Take the answers that are there; return how many."""
        data = self._rest + self.socket.recv(RECEIVE_BYTES)
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            data += self.socket.recv(RECEIVE_BYTES)
        if len(data) == len(self._rest):
            raise RuntimeError("the broker closed the connection")
        count, rest = divmod(len(data), self._answer)
        whole = len(data) - rest
        self._rest = data[whole:]
        if any(data[self._error_at : whole : self._answer]) or any(data[self._error_at + 1 : whole : self._answer]):
            raise RuntimeError(f"a request was refused: {data[: self._answer].hex()}")
        now = time.perf_counter()
        sent_at, note = self._sent_at, self.latencies.append
        for _ in range(count):
            note(now - sent_at.popleft())
        return count

    @property
    def unanswered(self) -> int:
        return len(self._sent_at)


def touch(load: Load) -> None:
    """
    Write one batch into every partition; Kafka names leaders before they take records, which is tried again.

    So the load itself finds every file open.
    """
    deadline = time.monotonic() + load.touch_seconds_max
    for leader in dict.fromkeys(map(load.leader_of, range(load.partitions))):
        with connected(load, leader) as connection, connection.makefile("rb") as answers:
            for at in range(load.partitions):
                if load.leader_of(at) != leader:
                    continue
                request = _request(load, at)
                while True:
                    connection.sendall(request)
                    answer = answers.read(answer_bytes(load.topic))
                    if not any(answer[-ERROR_FROM_END:][:2]):
                        break
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"partition {at} takes no records: {answer.hex()}")
                    time.sleep(0.05)


def run(load: Load, pipes: list[Pipe]) -> dict[str, Any]:
    """Keep every connection full until the time is over, then take the last answers."""
    epoll = select.epoll()
    by_fd = {pipe.socket.fileno(): pipe for pipe in pipes}
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    clock = time.perf_counter
    began = clock()
    deadline = began + load.seconds
    for pipe in pipes:
        pipe.send(load.in_flight, clock())
    if len(pipes) == 1:
        only = pipes[0]
        while (count := only.receive()) >= 0 and (now := clock()) < deadline:
            only.send(count, now)
    else:
        while clock() < deadline:
            for fd, _ in epoll.poll():
                pipe = by_fd[fd]
                pipe.send(pipe.receive(), clock())
    for pipe in pipes:
        while pipe.unanswered:
            pipe.receive()
    elapsed = clock() - began
    latencies = sorted(value for pipe in pipes for value in pipe.latencies)
    return {
        "messages": len(latencies),
        "acknowledged": (len(latencies) + load.partitions) * load.records,
        "seconds": elapsed,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    touch(load)
    pipes = [Pipe(load, number) for number in range(load.connections)]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(load, pipes)), flush=True)


if __name__ == "__main__":
    main()
