"""What a node holds in memory for its connections: bounded whatever they do, and nobody is refused or starved."""

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.records import batches_in, build_batch
from log_broker.server.net import connections
from log_broker.server.net.memory_budget import FREE_BYTES, MemoryBudget
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

MIB = 1 << 20
LIMIT = 8 * MIB
VALUE = random.Random(7).randbytes(200_000)


class Wire:
    """A socket that speaks frames, and reads nothing ahead of what it is asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, key: ApiKey, version: int, values: dict[str, Any]) -> None:
        request = write_request(key, version, 1, "test", values)
        self.writer.write(struct.pack(">i", len(request)) + request)

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        self.send(key, version, values)
        return read_response(key, version, memoryview(await self.receive())[4:])


@asynccontextmanager
async def open_wire(node: Node) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", node.port, limit=4096))
    try:
        yield wire
    finally:
        wire.writer.transport.abort()


@asynccontextmanager
async def running(folder: Path, **settings: str) -> AsyncIterator[Node]:
    """A node whose limit is small, with the topic `t` kept in memory."""
    names = {"socket.request.max.bytes": str(4 * MIB), "queued.max.request.bytes": str(LIMIT)}
    names |= {name.replace("_", "."): value for name, value in settings.items()}
    node = Node(BrokerConfig(data_dir=folder, port=0).with_settings(names))
    await node.start()
    try:
        await node.ensure_topic(
            CreateTopic(name="t", topic_id="1" * 32, partitions=1, overrides={"fluvial.durability": "memory"})
        )
        yield node
    finally:
        await node.stop()


def produced(value: bytes = VALUE) -> dict[str, Any]:
    records = bytes(build_batch([(1, b"k", value, ())]))
    topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [topic]}


def fetched(offset: int, *, bytes_max: int = 50 * MIB, bytes_min: int = 1, wait_ms: int = 500) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": bytes_max}
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": bytes_min,
        "max_bytes": bytes_max,
        "topics": [{"topic": "t", "partitions": [partition]}],
        "forgotten_topics_data": (),
    }


async def fill(node: Node, count: int) -> None:
    async with open_wire(node) as wire:
        for _ in range(count):
            answer = await wire.ask(ApiKey.PRODUCE, 9, produced())
            assert answer.responses[0].partition_responses[0].error_code == 0


async def good_client_gets_through(node: Node) -> None:
    async with open_wire(node) as wire:
        answer = await wire.ask(ApiKey.PRODUCE, 9, produced(b"good"))
        partition = answer.responses[0].partition_responses[0]
        assert partition.error_code == 0
        answer = await wire.ask(ApiKey.FETCH, 11, fetched(partition.base_offset))
        assert b"good" in answer.responses[0].partitions[0].records


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def ended(wire: Wire) -> bool:
    """Whether the broker ends the connection, by a reset or in order."""
    try:
        return await wire.reader.read() == b""
    except ConnectionError:
        return True


def held_max(node: Node) -> int:
    """The limit, what was let in beyond it at once, and each connection's free share."""
    return LIMIT + 2 * MIB + len(node.connections) * FREE_BYTES


async def test_many_large_fetches_that_nobody_reads_are_not_all_built(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await fill(node, 60)  # 12 MB
        wires = [await asyncio.open_connection("127.0.0.1", node.port, limit=4096) for _ in range(40)]
        request = write_request(ApiKey.FETCH, 11, 1, "slow", fetched(0))
        try:
            for _, writer in wires:
                writer.write((struct.pack(">i", len(request)) + request) * 5)
            await eventually(lambda: node.memory.held > LIMIT // 4)
            peak = 0
            for _ in range(40):
                await asyncio.sleep(0.02)
                peak = max(peak, node.memory.held)
            assert 0 < peak <= held_max(node), "40 clients asked for 12 MB five times each"
            # Who begins to read gets everything, in smaller answers at the worst.
            reader, _ = wires[0]
            for _ in range(5):
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(length)
            # Where the others hold all the memory, that takes until they are parted from.
            await good_client_gets_through(node)
        finally:
            for _, writer in wires:
                writer.transport.abort()
        await eventually(lambda: node.memory.held == 0)
        await good_client_gets_through(node)


async def test_a_slow_consumer_harms_neither_memory_nor_a_fast_one(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await fill(node, 60)
        async with open_wire(node) as slow, open_wire(node) as fast:
            for _ in range(20):
                slow.send(ApiKey.FETCH, 11, fetched(0))
            # Answers go to the system's own buffers until those are full as well.
            await eventually(lambda: node.memory.held > 0)
            held: list[int] = []
            read = 0
            for _ in range(3):
                offset = 0
                while offset < 60:
                    answer = await fast.ask(ApiKey.FETCH, 11, fetched(offset, bytes_max=2 * MIB))
                    records = memoryview(answer.responses[0].partitions[0].records)
                    count = sum(header.record_count for _, header in batches_in(records))
                    assert count
                    offset += count
                    read += count
                    held.append(node.memory.held)
            assert read == 3 * 60
            assert 0 < max(held) <= held_max(node)
            for _ in range(20):
                assert len(await slow.receive()) > len(VALUE), "and it still gets all it asked for"


async def test_long_polls_that_end_together_are_answered_one_by_one(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await fill(node, 40)
        async with open_wire(node) as wire:
            for _ in range(20):
                wire.send(ApiKey.FETCH, 11, fetched(0, bytes_min=1 << 30, wait_ms=50))
            peak = 0
            for _ in range(20):
                await asyncio.sleep(0.01)
                peak = max(peak, node.memory.held)
            assert peak <= held_max(node)
            for _ in range(20):
                assert len(await wire.receive()) > len(VALUE)


async def test_large_requests_wait_for_each_other_and_all_arrive(tmp_path: Path) -> None:
    value = random.Random(1).randbytes(900_000)
    async with running(tmp_path) as node:

        async def produce(_: int) -> int:
            async with open_wire(node) as wire:
                request = write_request(ApiKey.PRODUCE, 9, 1, "large", produced(value))
                wire.writer.write(struct.pack(">i", len(request)) + request[:300_000])
                await asyncio.sleep(0.05)  # all of them are in the middle of theirs now
                wire.writer.write(request[300_000:])
                answer = read_response(ApiKey.PRODUCE, 9, memoryview(await wire.receive())[4:])
                return int(answer.responses[0].partition_responses[0].base_offset)

        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, node.memory.held)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        offsets = await asyncio.gather(*map(produce, range(40)))
        watching.cancel()
        assert sorted(offsets) == list(range(40))
        assert peak <= LIMIT + 40 * FREE_BYTES
        assert node.memory.held == 0
        assert node.memory.waiting == 0


async def test_who_keeps_memory_from_others_and_does_nothing_is_parted_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS_MAX", 0.3)
    monkeypatch.setattr(connections, "IDLE_CHECK_SECONDS_MAX", 0.1)
    async with running(tmp_path) as node:
        begun = struct.pack(">i", 3 * MIB) + bytes(3 * MIB - 1)  # what is only announced keeps nobody waiting
        half = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(5)]
        try:
            for _, writer in half:
                writer.write(begun)
            await eventually(lambda: node.memory.waiting > 0)
            async with open_wire(node) as wire:
                answer = await wire.ask(ApiKey.PRODUCE, 9, produced(bytes(900_000)))
                assert answer.responses[0].partition_responses[0].error_code == 0
        finally:
            for _, writer in half:
                writer.transport.abort()


@pytest.mark.parametrize("waits", ["for a long poll", "for its answers to be read"])
async def test_who_waits_for_us_as_well_is_parted_from_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS_MAX", 0.3)
    monkeypatch.setattr(connections, "IDLE_CHECK_SECONDS_MAX", 0.1)
    async with running(tmp_path) as node:
        await fill(node, 40)
        long_poll = fetched(0, bytes_min=1 << 30, wait_ms=300_000)
        before = long_poll if waits == "for a long poll" else fetched(0)
        begun = struct.pack(">i", 3 * MIB) + bytes(3 * MIB - 1)
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", node.port, limit=4096)) for _ in range(5)]
        try:
            for wire in wires:
                wire.send(ApiKey.FETCH, 11, before)
                wire.writer.write(begun)
            async with open_wire(node) as wire:
                answer = await wire.ask(ApiKey.PRODUCE, 9, produced(bytes(900_000)))
                assert answer.responses[0].partition_responses[0].error_code == 0
        finally:
            for wire in wires:
                wire.writer.transport.abort()
        await eventually(lambda: node.memory.held == 0)


async def test_a_row_of_large_requests_is_not_taken_for_one_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS_MAX", 0.5)
    monkeypatch.setattr(connections, "IDLE_CHECK_SECONDS_MAX", 0.05)
    monkeypatch.setattr(MemoryBudget, "waiting", 1)  # somebody always does
    value = random.Random(1).randbytes(900_000)
    async with running(tmp_path) as node, open_wire(node) as wire:
        request = write_request(ApiKey.PRODUCE, 9, 1, "large", produced(value))
        stream = (struct.pack(">i", len(request)) + bytes(request)) * 8
        half = len(request) // 2
        wire.writer.write(stream[:half])
        for at in range(half, len(stream), half):
            await asyncio.sleep(0.15)  # each is there within its time, all together are not
            wire.writer.write(stream[at : at + half])
        for _ in range(8):
            await wire.receive()


async def test_a_limit_no_larger_than_the_largest_request_serves_all_the_same(tmp_path: Path) -> None:
    limits = {"queued_max_request_bytes": str(2 * MIB), "socket_request_max_bytes": str(2 * MIB)}
    async with running(tmp_path, **limits) as node:
        await fill(node, 20)

        async def produce() -> None:
            async with open_wire(node) as wire:
                for _ in range(3):
                    wire.send(ApiKey.PRODUCE, 9, produced(bytes(900_000)))
                    wire.send(ApiKey.METADATA, 1, {"topics": None})
                for _ in range(6):
                    await wire.receive()

        async def consume() -> None:
            async with open_wire(node) as wire:
                for _ in range(100):
                    wire.send(ApiKey.FETCH, 11, fetched(0))
                for _ in range(100):
                    assert len(await wire.receive()) > len(VALUE)

        await asyncio.gather(*(produce() for _ in range(10)), *(consume() for _ in range(4)))
        assert (node.memory.held, node.memory.waiting) == (0, 0)
        await good_client_gets_through(node)


async def test_a_half_open_connection_is_closed_after_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, connections_max_idle_ms="200") as node:
        async with open_wire(node) as silent, open_wire(node) as slow:
            slow.writer.write(b"\0\0\1")
            assert await silent.reader.read() == b""
            assert await slow.reader.read() == b""
        await eventually(lambda: not node.connections)


async def test_one_address_has_its_share_of_connections(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections_per_ip="3") as node:
        async with open_wire(node) as one, open_wire(node), open_wire(node):
            await eventually(lambda: len(node.connections) == 3)
            async with open_wire(node) as fourth:
                assert await ended(fourth)
            assert (await one.ask(ApiKey.API_VERSIONS, 0, {})).error_code == 0
        await eventually(lambda: not node.connections)
        await good_client_gets_through(node)


async def test_two_thousand_connections_cost_little_and_hinder_no_one(tmp_path: Path) -> None:
    count = 2_000
    async with running(tmp_path, connections_max_idle_ms="600000") as node:
        process = psutil.Process(os.getpid())
        await good_client_gets_through(node)
        before = process.memory_info().rss
        sockets: list[asyncio.Transport] = []
        try:
            for _ in range(count):
                # The client's side counts as well: it is this process.
                transport, _ = await node.loop.create_connection(asyncio.Protocol, "127.0.0.1", node.port)
                sockets.append(transport)
            await eventually(lambda: len(node.connections) >= count)
            per_connection = (process.memory_info().rss - before) // count
            assert per_connection < 32 * 1024, f"{per_connection} bytes for both ends of an idle connection"
            await good_client_gets_through(node)
        finally:
            for transport in sockets:
                transport.abort()
        await eventually(lambda: not node.connections)


class Waiting:
    """Wants so many bytes, and takes them when it may."""

    def __init__(self, budget: MemoryBudget, wanted: int) -> None:
        self.budget = budget
        self.wanted = wanted
        self.served = False

    def bytes_wanted(self) -> int:
        return self.wanted

    def memory_freed(self) -> None:
        self.served = True
        self.budget.change(self.wanted)


async def test_those_who_wait_are_served_in_turn() -> None:
    budget = MemoryBudget(asyncio.get_running_loop(), 100)
    budget.change(90)
    large, small = Waiting(budget, 80), Waiting(budget, 5)
    budget.wait(large)
    budget.wait(small)
    await asyncio.sleep(0)
    assert not large.served
    assert not small.served, "what comes later and would fit does not overtake"
    assert not budget.admits(1)
    budget.change(-75)
    await asyncio.sleep(0)
    assert large.served
    assert small.served
    assert (budget.held, budget.is_full, budget.waiting) == (100, True, 0)


async def test_what_is_larger_than_everything_goes_alone() -> None:
    budget = MemoryBudget(asyncio.get_running_loop(), 100)
    budget.change(1)
    large = Waiting(budget, 1000)
    budget.wait(large)
    await asyncio.sleep(0)
    assert not large.served
    budget.change(-1)
    await asyncio.sleep(0)
    assert large.served


class Reading:
    """A connection that reads one large request after the other as `Connection` does."""

    def __init__(self, budget: MemoryBudget, rng: random.Random, lengths: list[int]) -> None:
        self.budget = budget
        self.rng = rng
        self.lengths = lengths
        self.held = self.wanted = 0

    def run(self) -> None:
        """Begin with a request: a first piece where there is room for any request, else what is admitted."""
        if self.lengths:
            if not self.budget.is_reserved:
                self.take(min(self.rng.randrange(1, 257), self.lengths[0]))
            self.go_on()

    def take(self, size: int) -> None:
        self.held += size
        self.budget.lacks(self, self.lengths[0] - self.held)
        self.budget.change(size)

    def go_on(self) -> None:
        lacking = self.lengths[0] - self.held
        if not lacking:
            self.lengths.pop(0)
            asyncio.get_running_loop().call_later(self.rng.random() / 500, self.answered)
            return
        self.wanted = min(lacking, self.rng.randrange(1, 4000))
        if self.budget.admits(self.wanted, self, lacking):
            self.memory_freed()
        else:
            self.budget.wait(self, lacking)

    def answered(self) -> None:
        held, self.held = self.held, 0
        self.budget.change(-held)
        self.run()

    def bytes_wanted(self) -> int:
        return self.wanted

    def memory_freed(self) -> None:
        self.take(self.wanted)
        asyncio.get_running_loop().call_later(self.rng.random() / 500, self.go_on)


@pytest.mark.parametrize("limit", [10_000, 15_000, 60_000])
async def test_requests_that_have_begun_can_always_be_finished(limit: int) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        budget = MemoryBudget(asyncio.get_running_loop(), limit, request_bytes_max=10_000)
        readings = [
            Reading(budget, rng, [rng.randrange(1000, 10_001) for _ in range(4)]) for _ in range(rng.randrange(2, 30))
        ]
        peak = 0
        for reading in readings:
            reading.run()
        for _ in range(3000):
            peak = max(peak, budget.held)
            if not any(reading.lengths or reading.held for reading in readings):
                break
            await asyncio.sleep(0.001)
        assert not any(reading.lengths or reading.held for reading in readings), (
            f"seed {seed}: they wait for each other"
        )
        assert peak <= limit
        assert (budget.held, budget.waiting) == (0, 0)
