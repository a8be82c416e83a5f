"""
OffsetCommit requests from a process of its own: `python -m tests.bench.broker.commit_requests JSON`.

Each connection is a reader that commits the same offsets again and again: of a group of its own, or of nothing but a
group id. It does as little as it can, as it shares the cores with the broker: the requests are bytes made beforehand.
Says `ready`, waits for a line, and answers with a line of JSON.
"""

import json
import select
import socket
import struct
import sys
import time
from array import array
from typing import Any, NamedTuple

from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

CLIENT = "bench"
COMMIT_VERSION = 9  # that of librdkafka 2.16
JOIN_VERSION = 3  # the last one in which a newcomer is let in at once
SYNC_VERSION = 2
FIND_VERSION = 1
FETCH_VERSION = 8
OFFSET = 12_345
PATIENCE_SECONDS = 60.0
_LENGTH = struct.Struct(">i")


class Load(NamedTuple):
    """What each commit names, who commits, and at what pace; 0: each as soon as its last one is answered."""

    address: str
    topic: str
    partitions: int
    connections: int
    in_group: bool
    commits_a_second: int
    seconds: float


class Reader:
    """One connection, which has one request under way at the most."""

    def __init__(self, load: Load, number: int) -> None:
        host, port = load.address.split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._load = load
        self._group = f"{load.topic}-{number:04d}"
        self._await_coordinator()
        member, generation = self._join() if load.in_group else ("", -1)
        values = {
            "group_id": self._group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": None,
            "topics": [{"name": load.topic, "partitions": [_read_up_to(at) for at in range(load.partitions)]}],
        }
        self._request = _framed(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, values)
        self._answer = self._first_answer()
        self._sent_at = 0.0
        self.latencies = array("d")

    def send(self, now: float) -> None:
        self.socket.sendall(self._request)
        self._sent_at = now

    def receive(self) -> None:
        """Take the answer, which is that of before."""
        answer = self.socket.recv(len(self._answer), socket.MSG_WAITALL)
        if answer != self._answer:
            raise RuntimeError(f"a commit was refused: {answer.hex()}")
        self.latencies.append(time.perf_counter() - self._sent_at)

    def _await_coordinator(self) -> None:
        """Return once the broker takes care of the group: who asks first has the topic made that it is kept in."""
        self._ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, {"key": self._group, "key_type": 0})
        values = {"groups": [{"group_id": self._group, "topics": None}], "require_stable": False}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._ask(ApiKey.OFFSET_FETCH, FETCH_VERSION, values).groups[0].error_code:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody coordinates {self._group}")
            time.sleep(0.05)

    def _first_answer(self) -> bytes:
        self.socket.sendall(self._request)
        answer = self._receive()
        (topic,) = read_response(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, memoryview(answer)[8:]).topics
        if any(partition.error_code for partition in topic.partitions):
            raise RuntimeError(f"nothing can be committed: {topic}")
        return answer

    def _join(self) -> tuple[str, int]:
        """Join a group without other members, and return the member's id and the generation."""
        timeouts = {"session_timeout": 300_000, "rebalance_timeout": 300_000}
        protocols = [{"name": "range", "metadata": b""}]
        wish = {"group_id": self._group, "member_id": "", "protocol_type": "consumer", "protocols": protocols}
        joined = self._ask(ApiKey.JOIN_GROUP, JOIN_VERSION, {**wish, **timeouts})
        member, generation = joined.member_id, joined.generation_id
        assignments = [{"member_id": member, "assignment": b""}]
        named = {"group_id": self._group, "generation_id": generation, "member_id": member, "assignments": assignments}
        self._ask(ApiKey.SYNC_GROUP, SYNC_VERSION, named)
        return member, generation

    def _ask(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        self.socket.sendall(_framed(api, version, values))
        return read_response(api, version, memoryview(self._receive())[8:])

    def _receive(self) -> bytes:
        length = self.socket.recv(_LENGTH.size, socket.MSG_WAITALL)
        return length + self.socket.recv(_LENGTH.unpack(length)[0], socket.MSG_WAITALL)


def _read_up_to(partition: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": OFFSET,
        "committed_leader_epoch": 0,
        "committed_metadata": "",
    }


def _framed(api: ApiKey, version: int, values: dict[str, Any]) -> bytes:
    request = write_request(api, version, 1, CLIENT, values)
    return _LENGTH.pack(len(request)) + bytes(request)


def _steadily(readers: list[Reader], load: Load) -> None:
    """Commit at the pace, one reader after the other."""
    began, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < began + load.seconds:
        due = began + sent / load.commits_a_second
        if now < due:
            time.sleep(due - now)
            continue
        reader = readers[sent % len(readers)]
        reader.send(now)
        reader.receive()
        sent += 1


def _without_pause(readers: list[Reader], load: Load) -> None:
    """Have a commit of every reader under way until the time is over."""
    epoll = select.epoll()
    by_fd = {reader.socket.fileno(): reader for reader in readers}
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    deadline = time.perf_counter() + load.seconds
    for reader in readers:
        reader.send(time.perf_counter())
    while (now := time.perf_counter()) < deadline:
        for fd, _ in epoll.poll():
            by_fd[fd].receive()
            by_fd[fd].send(now)
    for reader in readers:
        reader.receive()


def run(load: Load, readers: list[Reader]) -> dict[str, Any]:
    began = time.perf_counter()
    (_steadily if load.commits_a_second else _without_pause)(readers, load)
    elapsed = time.perf_counter() - began
    latencies = sorted(value for reader in readers for value in reader.latencies)
    return {
        "messages": len(latencies),
        "seconds": elapsed,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    readers = [Reader(load, number) for number in range(load.connections)]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(load, readers)), flush=True)


if __name__ == "__main__":
    main()
