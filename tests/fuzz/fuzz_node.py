"""
A broker in a process of its own, what is thrown at it over sockets, and a good client beside.

The good client produces and reads back all the while. What counts as a finding: a broken promise to it, the end of the
process, an exception of the broker's own in its log, and memory, sockets or tasks that are still held afterwards.
"""

import asyncio
import itertools
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
from fuzz_requests import BAD_FRAMES, FOREIGN, RequestFuzzer, bomb

from log_broker.records import Codec, batches_in, build_batch, iterate_records
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

LANES = 12
ANSWER_SECONDS = 0.3  # a request may well be one that waits; its connection is given up then
MEMORY_GROWTH_MAX = 96 << 20
BOMB_BYTES = 192 << 20  # more than is ever decompressed
TOPICS = {
    "good": {},
    "fuzz": {"retention.bytes": "10000000", "segment.bytes": "1000000"},
    "fuzz-compact": {"cleanup.policy": "compact"},
    "fuzz-zstd": {"compression.type": "zstd", "retention.bytes": "10000000", "segment.bytes": "1000000"},
    "fuzz-times": {"message.timestamp.before.max.ms": "1000", "fluvial.durability": "memory"},
}
_METRIC = re.compile(r"^(\w+) ([\d.e+]+)$", re.MULTILINE)


class Wire:
    """One connection that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._correlation = itertools.count(1)

    @classmethod
    async def open(cls, port: int) -> "Wire":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def frame(self) -> bytes:
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    async def ask(self, key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        request = write_request(key, version, next(self._correlation), "good", values)
        self.writer.write(framed(request))
        return read_response(key, version, memoryview(await self.frame())[4:])

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)


def framed(request: bytes | bytearray) -> bytes:
    return struct.pack(">i", len(request)) + bytes(request)


class NodeUnderFire:
    """`python -m fluvial.node`, with its metrics, on free ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log = folder / "node.log"
        self.port, self.metrics_port = _free_ports(2)

    def __enter__(self) -> "NodeUnderFire":
        words = ("--port", self.port, "--metrics-port", self.metrics_port, "--data-dir", self._folder / "data")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fluvial.node", *map(str, words)], stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                if self.metrics():
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"the node did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as answer:
            return {name: float(value) for name, value in _METRIC.findall(answer.read().decode())}

    def memory(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def holds(self) -> dict[str, float]:
        """What must go back to where it was once the connections are gone."""
        found = self.metrics()
        return {
            "connections": found["log_broker_connections"],
            "tasks": found["log_broker_tasks"],
            "held bytes": found["log_broker_queued_bytes"],
        }


@dataclass
class Report:
    """What came of it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    good_rounds: int = 0
    memory_before: int = 0
    memory_after: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outcomes.items()))
        return (
            f"over sockets: {kinds}; {self.good_rounds} rounds of the good client; "
            f"resident {self.memory_before >> 20} MiB before, {self.memory_after >> 20} MiB after"
        )


async def fire(node: NodeUnderFire, seed: int, count: int, *, at_each: Callable[[], object] = lambda: None) -> Report:
    """Throw `count` requests at the node; the first tenth warms it up before its memory is noted."""
    report = Report()
    await _make_topics(node.port)
    done = asyncio.Event()
    good = asyncio.create_task(_good_client(node.port, done, report))
    warm = max(count // 10, 1)
    await _volley(node, seed, range(warm), report, at_each)
    report.memory_before = node.memory()
    await _volley(node, seed, range(warm, count), report, at_each)
    await _throw_bombs(node, report)
    done.set()
    try:
        await good
    except Exception as error:
        report.findings.append(f"the good client: {error!r}")
    if node.process.poll() is not None:
        report.findings.append(f"the node ended with status {node.process.returncode}")
        return report
    await _until_released(node, report)
    report.memory_after = node.memory()
    if report.memory_after > report.memory_before + MEMORY_GROWTH_MAX:
        report.findings.append(f"memory grew from {report.memory_before} to {report.memory_after} bytes")
    report.findings += _failures(node.log.read_text())
    return report


def _failures(log: str) -> list[str]:
    """The exceptions that the broker logged: a request may be refused, but never surprise it."""
    # Each stands in one line, its line breaks escaped.
    lines = [line for line in log.splitlines() if "Traceback" in line]
    return [f"{len(lines)} failures of the broker's own, the first: {lines[0]}"] if lines else []


async def _volley(
    node: NodeUnderFire, seed: int, indexes: range, report: Report, at_each: Callable[[], object]
) -> None:
    fuzzer = RequestFuzzer(seed)

    async def lane(number: int) -> None:
        rng = Random(seed * 1000 + number)
        wire: Wire | None = None
        for index in range(indexes.start + number, indexes.stop, LANES):
            try:
                wire = wire or await Wire.open(node.port)
                kind = await _throw(wire, fuzzer.request(index), rng)
            except ConnectionRefusedError:
                report.findings.append(f"no connection for request {index}")
                return
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                kind = "waiting" if isinstance(error, TimeoutError) else "closed"
            report.outcomes[kind] += 1
            at_each()
            if kind != "answered" and wire is not None:
                await wire.close()
                wire = None
        if wire is not None:
            await wire.close()

    await asyncio.gather(*map(lane, range(LANES)))


async def _throw(wire: Wire, request: bytes, rng: Random) -> str:
    """Send one request, now and then in an odd way, and an ApiVersions behind it that shows that it got through."""
    way = rng.random()
    if way < 0.01:
        wire.writer.write(rng.choice(FOREIGN))
    elif way < 0.02:
        wire.writer.write(rng.choice(BAD_FRAMES))
    elif way < 0.03:
        wire.writer.write(framed(request)[: rng.randrange(len(request) + 4)])
        await asyncio.sleep(0.01)
        return "half"
    elif way < 0.05:
        for byte in framed(request)[:60]:
            wire.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        wire.writer.write(framed(request)[60:])
    else:
        wire.writer.write(framed(request))
    ping = rng.randrange(1 << 31)
    wire.writer.write(framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, ping, -1)))
    async with asyncio.timeout(ANSWER_SECONDS):
        while (await wire.frame())[:4] != ping.to_bytes(4, "big"):
            pass
    return "answered"


async def _throw_bombs(node: NodeUnderFire, report: Report) -> None:
    """Some kilobytes each that would grow without bound where the topic has the broker look inside."""
    wire = await Wire.open(node.port)
    before = node.memory()
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        records = bytes(bomb(codec, BOMB_BYTES))
        for topic in ("fuzz-compact", "fuzz-zstd"):
            if codec is Codec.ZSTD and topic == "fuzz-zstd":
                continue  # stored as it is
            answer = await wire.ask(ApiKey.PRODUCE, 9, _produce(topic, records))
            error = answer.responses[0].partition_responses[0].error_code
            # A topic that the broken requests have deleted refuses it as well.
            report.outcomes["bombs refused" if error else "bombs stored"] += 1
            if not error or node.memory() > before + MEMORY_GROWTH_MAX:
                report.findings.append(f"a {codec.name} bomb to {topic}: error {error}, memory {node.memory()}")
    await wire.close()


def _produce(topic: str, records: bytes) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
    }


async def _make_topics(port: int) -> None:
    wire = await Wire.open(port)
    topics = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, configs in TOPICS.items()
    ]
    answer = await wire.ask(ApiKey.CREATE_TOPICS, 5, {"topics": topics, "timeout": 10_000, "validate_only": False})
    assert all(topic.error_code == 0 for topic in answer.topics), answer
    # What a stranger asks for is not made, or the node's size would follow the number of names tried.
    setting = {"name": "auto.create.topics.enable", "config_operation": 0, "value": "false"}
    resource = {"resource_type": 4, "resource_name": "", "configs": [setting]}
    answer = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert all(response.error_code == 0 for response in answer.responses), answer
    await wire.close()


async def _good_client(port: int, done: asyncio.Event, report: Report) -> None:
    """Produce, and read back what was produced, until told to end; then read everything once more."""
    wire = await Wire.open(port)
    sent: list[bytes] = []
    while not (done.is_set() and report.good_rounds > 10):
        values = [b"%d" % (len(sent) + at) for at in range(5)]
        batch = build_batch((1_700_000_000_000, b"k", value, ()) for value in values)
        answer = await wire.ask(ApiKey.PRODUCE, 9, _produce("good", bytes(batch)))
        found = answer.responses[0].partition_responses[0]
        assert (found.error_code, found.base_offset) == (0, len(sent)), found
        assert await _read(wire, len(sent)) == values
        sent += values
        report.good_rounds += 1
        await asyncio.sleep(0.005)
    read: list[bytes] = []
    while len(read) < len(sent):
        read += await _read(wire, len(read))
    assert read == sent
    await wire.close()


async def _read(wire: Wire, offset: int) -> list[bytes]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    answer = await wire.ask(
        ApiKey.FETCH,
        11,
        {
            "replica_id": -1,
            "max_wait": 5000,
            "min_bytes": 1,
            "topics": [{"topic": "good", "partitions": [partition]}],
            "forgotten_topics_data": (),
        },
    )
    found = answer.responses[0].partitions[0]
    assert found.error_code == 0, found
    records = memoryview(found.records)
    return [
        record.value or b""
        for at, header in batches_in(records)
        for record in iterate_records(records[at : at + header.size])
        if record.offset >= offset
    ]


async def _until_released(node: NodeUnderFire, report: Report) -> None:
    """Wait until nothing is held for connections that are gone; waiting group members may take their time."""
    deadline = time.monotonic() + 60
    while any((held := node.holds()).values()):
        if time.monotonic() > deadline:
            report.findings.append(f"still held after the connections are gone: {held}")
            return
        await asyncio.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
