"""What waiting fetches cost: each write is looked at once, whatever waits for it and however often it was asked for."""

import asyncio
import struct
import time
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.fetch.session import FetchSessions
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import build_batch
from log_broker.server.handlers.data import fetch
from log_broker.server.net.memory_budget import MemoryBudget
from log_broker.server.node import Node
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.readers import Waiters
from log_broker.server.process.machine import RealMachine
from log_broker.storage.files import File, OsFileSystem
from log_broker.storage.memory_files import MemoryFileSystem
from log_broker.wire.framing import RequestHeader

NOW_MS = 1_700_000_000_000
PLENTY = 1 << 20
BATCH = bytes(build_batch([(NOW_MS, b"key", b"value", ())]))


class CountedFiles(MemoryFileSystem):
    """Counts reads."""

    reads = 0

    def fail_read_if_asked(self) -> None:
        self.reads += 1
        super().fail_read_if_asked()


class FakeNode:
    """What the handler asks of a node."""

    authorizer = None

    def __init__(self, logs: LogManager, files: CountedFiles, memory_limit: int) -> None:
        self.logs = logs
        self.files = files
        self.config = BrokerConfig(data_dir=Path("data"))
        self.waiting_fetches: dict[Any, deque[Any]] = {}
        self.fetch_sessions = FetchSessions(slots_max=10)
        self.memory = MemoryBudget(asyncio.get_running_loop(), memory_limit)

    def clock_ms(self) -> int:
        return NOW_MS

    def absence_of(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def waiting_at(self, partitions: Iterable[int]) -> int:
        return sum(len(self.logs.get("t", at).waiters) for at in partitions)  # type: ignore[union-attr]

    async def written(self, partitions: Iterable[int]) -> None:
        """Append one batch to each within one turn of the loop; return when those who waited have been told."""
        answers = []
        for at in partitions:
            runtime = self.logs.get("t", at)
            assert runtime is not None
            answers.append(asyncio.get_running_loop().create_future())
            runtime.append(BATCH, acks=1, done=answers[-1].set_result)
        assert {answer.error for answer in await asyncio.gather(*answers)} == {ErrorCode.NONE}
        for _ in range(3):
            await asyncio.sleep(0)


class Owner:
    """A connection."""

    is_closed = False


class Slot:
    """Keeps what it is filled with."""

    peer = "test:1"
    must_wait = False
    closed = False

    def __init__(self, owner: Owner | None = None) -> None:
        self.owner = owner or Owner()
        self.answer: bytes | None = None
        self.bytes_held = 0
        self.gone: Callable[[], None] = lambda: None

    def complete(self, *chunks) -> None:
        assert self.answer is None
        self.answer = b"".join(chunks)

    def hold(self, size: int) -> None:
        self.bytes_held += size

    def on_close(self, callback: Callable[[], None]) -> None:
        self.gone = callback

    def close(self) -> None:
        self.closed = self.owner.is_closed = True
        self.gone()

    def found(self) -> list[tuple[int, ErrorCode, int]]:
        """(partition, error, bytes) of each partition in the answer, in its order."""
        assert self.answer is not None
        at = struct.calcsize(">iihi")
        (topics,) = struct.unpack_from(">i", self.answer, at)
        at += 4
        found = []
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", self.answer, at)
            (count,) = struct.unpack_from(">i", self.answer, at + 2 + length)
            at += 6 + length
            for _ in range(count):
                partition, code, _, _, _, _, _, size = struct.unpack_from(">ihqqqiii", self.answer, at)
                at += struct.calcsize(">ihqqqiii") + size
                found.append((partition, ErrorCode(code), size))
        assert at == len(self.answer)
        return found


@asynccontextmanager
async def broker(partitions: int, *, memory_limit: int = 1 << 30, **overrides: str) -> AsyncIterator[FakeNode]:
    files = CountedFiles()
    logs = LogManager(Path("logs"), asyncio.get_running_loop(), validator=None, clock_ms=lambda: NOW_MS, files=files)
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    config = TopicConfig.from_overrides({"fluvial.durability": "memory", **named}, None)
    logs.open_all(lambda topic: config)
    for at in range(partitions):
        logs.create("t", at, UUID(int=1), config)
    try:
        yield FakeNode(logs, files, memory_limit)
    finally:
        await logs.close()


def send(
    node: FakeNode,
    asked: Iterable[tuple[int, int]],
    *,
    bytes_min: int,
    wait_ms: int = 60_000,
    partition_bytes: int = PLENTY,
    slot: Slot | None = None,
) -> Slot:
    """Send a Fetch version 11 without a session for (partition, offset)s of the topic `t`."""
    entries = [struct.pack(">iiqqi", at, -1, offset, -1, partition_bytes) for at, offset in asked]
    body = struct.pack(">iiiibii", -1, wait_ms, bytes_min, 50 << 20, 0, 0, -1)
    body += struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", len(entries)) + b"".join(entries)
    body += struct.pack(">ih", 0, 0)
    slot = slot or Slot()
    header = RequestHeader(api_key=1, api_version=11, correlation_id=42, client_id="test")
    fetch.handle(node, header, memoryview(body), slot)  # type: ignore[arg-type]
    return slot


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true")


@pytest.mark.parametrize("partitions", [100, 200])
async def test_each_partition_that_is_written_is_looked_at_once(partitions: int) -> None:
    async with broker(partitions) as node:
        everything = range(partitions)
        slot = send(node, [(at, 0) for at in everything], bytes_min=partitions * len(BATCH) * 4)
        for _ in range(3):
            await node.written(everything)
        assert slot.answer is None
        waited = node.files.reads
        assert waited <= 3 * partitions, "what is there is counted, at the most by a look at where it lies"
        await node.written(everything)
        assert slot.found() == [(at, ErrorCode.NONE, 4 * len(BATCH)) for at in everything]
        assert node.files.reads - waited <= 4 * partitions, "and read once"
        assert node.waiting_at(everything) == 0


async def test_a_turn_that_writes_many_partitions_wakes_a_fetch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon

    def counted(callback, *arguments, **options):
        called.append(getattr(callback, "__qualname__", ""))
        return call_soon(callback, *arguments, **options)

    async with broker(100) as node:
        await node.written(range(100))  # the first write of each waits for the disk
        slot = send(node, [(at, 1) for at in range(100)], bytes_min=PLENTY)
        monkeypatch.setattr(loop, "call_soon", counted)
        await node.written(range(100))
        monkeypatch.undo()
        assert slot.answer is None
        assert len([name for name in called if "_Fetch" in name]) == 1
        slot.close()


async def test_a_partition_that_is_named_two_thousand_times_is_read_once() -> None:
    async with broker(2) as node:
        asked = [(0, 7)] * 1999 + [(1, 0), (0, 0)]
        slot = send(node, asked, bytes_min=2 * len(BATCH))
        await node.written([0])
        assert slot.answer is None
        await node.written([1])
        assert slot.found() == [(0, ErrorCode.NONE, len(BATCH)), (1, ErrorCode.NONE, len(BATCH))], "the last counts"
        assert node.files.reads <= 8


async def test_what_was_there_before_counts_with_what_comes() -> None:
    async with broker(3) as node:
        await node.written([0, 0, 1])
        slot = send(node, [(0, 0), (1, 0), (2, 0)], bytes_min=5 * len(BATCH))
        await node.written([2])
        assert slot.answer is None
        await node.written([0])
        assert [size // len(BATCH) for _, _, size in slot.found()] == [3, 1, 1]


async def test_a_fetch_for_anything_is_answered_without_counting() -> None:
    async with broker(2) as node:
        slot = send(node, [(0, 0), (1, 0)], bytes_min=1)
        await node.written([1])
        assert [size for _, _, size in slot.found()] == [0, len(BATCH)]
        assert node.files.reads == 2, "where its offset lies, and the bytes there"


async def test_one_fetch_of_a_connection_waits_at_a_time() -> None:
    owner = Owner()
    async with broker(1) as node:
        slots = [send(node, [(0, 0)], bytes_min=1, slot=Slot(owner)) for _ in range(4)]
        other = send(node, [(0, 0)], bytes_min=PLENTY)
        assert node.waiting_at([0]) == 2
        await node.written([0])
        for _ in range(5):
            await asyncio.sleep(0)
        assert [slot.found()[0][2] for slot in slots] == [len(BATCH)] * 4, "those behind are answered in turn"
        assert (other.answer, len(node.waiting_fetches)) == (None, 1)
        slots = [send(node, [(0, 1)], bytes_min=1, wait_ms=1, slot=Slot(owner)) for _ in range(3)]
        await eventually(lambda: slots[-1].answer is not None)
        assert [slot.found()[0][2] for slot in slots] == [0] * 3, "each waits for its time"
        slots = [send(node, [(0, 1)], bytes_min=1, slot=Slot(owner)) for _ in range(3)]
        slots[0].close()
        other.close()
        await node.written([0])
        assert [slot.answer for slot in slots] == [None] * 3
        assert (node.waiting_at([0]), node.waiting_fetches) == (0, {})


async def test_what_large_fetches_hold_while_they_wait_is_bounded() -> None:
    partitions = 200
    async with broker(partitions, memory_limit=1 << 20) as node:
        slots = []
        for _ in range(10):
            slots.append(send(node, [(at, 0) for at in range(partitions)], bytes_min=1))
            node.memory.change(slots[-1].bytes_held)
        held = sum(slot.bytes_held for slot in slots)
        assert 0 < held <= 1 << 19, "half of what requests and answers may hold together"
        waiting = [slot for slot in slots if slot.bytes_held]
        assert node.waiting_at([0]) == len(waiting) < len(slots)
        await eventually(lambda: all(slot.answer is not None for slot in slots if slot not in waiting))
        assert all(slot.answer is None for slot in waiting), "others are answered with what there is"
        for slot in waiting:
            slot.close()
        assert node.waiting_at(range(partitions)) == 0


async def test_a_waiting_fetch_takes_no_more_memory_than_is_counted() -> None:
    partitions = 500
    async with broker(partitions) as node:
        send(node, [(at, 0) for at in range(partitions)], bytes_min=1).close()
        await asyncio.sleep(0)
        asked = [(at, 10**12 + at) for at in range(partitions)]
        for at in range(partitions):  # offsets that are no small numbers
            node.logs.get("t", at).replica.core.state.written_end = 2 * 10**12  # type: ignore[union-attr]
        tracemalloc.start()
        try:
            slot = send(node, asked, bytes_min=1)
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < slot.bytes_held
        slot.close()


@pytest.mark.parametrize("written", [[0], [0, 39]])
async def test_very_many_partitions_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch, written) -> None:
    monkeypatch.setattr(fetch, "SLICE_PARTITIONS", 5)
    async with broker(40) as node:
        everything = range(40)
        await node.written(everything)
        owner = Owner()
        slot = send(node, [(at, 1) for at in everything], bytes_min=len(written) * len(BATCH), slot=Slot(owner))
        behind = send(node, [(0, 0)], bytes_min=1, slot=Slot(owner))
        assert node.waiting_at(everything) == 0, "not all have been looked at"
        await node.written(written)  # of which 0 has been looked at
        await eventually(lambda: slot.answer is not None)
        assert {at: size for at, _, size in slot.found() if size} == dict.fromkeys(written, len(BATCH))
        await eventually(lambda: behind.answer is not None)
        unknown = send(node, [(at, 0) for at in range(100, 200)], bytes_min=1, wait_ms=0)
        assert unknown.answer is None
        await eventually(lambda: unknown.answer is not None)
        assert unknown.found() == [(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0) for at in range(100, 200)]
        gone = send(node, [(at, 2) for at in everything], bytes_min=1)
        gone.close()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (gone.answer, node.waiting_at(everything), node.waiting_fetches) == (None, 0, {})


async def test_a_fetch_that_fails_behind_another_is_answered() -> None:
    def fail(topic: str, partition: int) -> ErrorCode:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "nothing can be said of it")

    owner = Owner()
    async with broker(1) as node:
        node.absence_of = fail  # type: ignore[method-assign]
        slots = [send(node, [(at, 0)], bytes_min=1, slot=Slot(owner)) for at in (0, 9, 0)]
        await node.written([0])
        await eventually(lambda: all(slot.answer is not None for slot in slots))
        assert struct.unpack_from(">h", slots[1].answer or b"", 8) == (ErrorCode.KAFKA_STORAGE_ERROR,)
        assert [slots[at].found()[0][2] for at in (0, 2)] == [len(BATCH)] * 2
        await eventually(lambda: node.waiting_fetches == {})


@pytest.mark.parametrize("step", ["_count", "_time_is_up"])
async def test_a_fetch_that_fails_while_it_waits_is_answered_and_the_next_begins(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("on purpose")

    owner = Owner()
    async with broker(2) as node:
        monkeypatch.setattr(fetch._Fetch, step, fail)
        first_ms = 20 if step == "_time_is_up" else 60_000
        slots = [send(node, [(at, 0)], bytes_min=1, wait_ms=ms, slot=Slot(owner)) for at, ms in enumerate((first_ms, 20))]
        if step == "_count":
            await node.written([0])
        await eventually(lambda: slots[0].answer is not None)
        assert struct.unpack_from(">h", slots[0].answer or b"", 8) == (ErrorCode.UNKNOWN_SERVER_ERROR,)
        await eventually(lambda: slots[1].answer is not None and node.waiting_fetches == {})
        assert (slots[1].found(), node.waiting_at(range(2))) == ([(1, ErrorCode.NONE, 0)], 0)


async def test_more_than_may_be_sent_of_a_partition_is_not_waited_for() -> None:
    async with broker(1) as node:
        slot = send(node, [(0, 0)], bytes_min=10 * len(BATCH), partition_bytes=2 * len(BATCH))
        await node.written([0, 0])
        assert slot.answer is None
        await node.written([0])
        assert slot.found() == [(0, ErrorCode.NONE, 2 * len(BATCH))]


async def test_a_new_segment_ends_the_wait() -> None:
    async with broker(1, segment_bytes=str(2 * len(BATCH))) as node:
        await node.written([0])
        slot = send(node, [(0, 0)], bytes_min=100 * len(BATCH))
        await node.written([0])
        assert slot.answer is None
        await node.written([0])
        assert slot.found() == [(0, ErrorCode.NONE, 2 * len(BATCH))]


async def test_a_partition_that_goes_away_ends_the_wait() -> None:
    async with broker(3) as node:
        slot = send(node, [(at, 0) for at in range(3)], bytes_min=PLENTY)
        await node.logs.get("t", 1).close()  # type: ignore[union-attr]
        for _ in range(3):
            await asyncio.sleep(0)
        assert node.waiting_at([0, 2]) == 2, "closed and still there: it may come back"
        slot.close()
        assert node.waiting_at([0, 2]) == 0


async def test_who_is_gone_is_not_called_although_the_call_was_under_way() -> None:
    async with broker(2) as node:
        runtime = node.logs.get("t", 0)
        assert runtime is not None
        called: list[int] = []
        cancel = runtime.on_readable(0, lambda: called.append(1))
        runtime.waiters.wake_all()
        cancel()
        cancel()
        slot = send(node, [(0, 0), (1, 0)], bytes_min=1)
        runtime.waiters.wake_all()
        slot.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert (called, slot.answer, node.waiting_at([0, 1])) == ([], None, 0)


class Noted:
    """A reader that notes what it is told."""

    def __init__(self, waiters: Waiters) -> None:
        self.waiters = waiters
        self.told: list[tuple[int, int]] = []

    def moved(self, at: int, offset: int) -> None:
        self.told.append((at, offset))
        if offset >= 0:
            self.waiters.add(self, at, offset + 10, committed=False)  # as one does that goes on waiting


def test_only_those_are_told_who_may_read_more() -> None:
    waiters = Waiters()
    plain, committed, behind = Noted(waiters), Noted(waiters), Noted(waiters)
    waiters.add(plain, 1, 0, committed=False)
    waiters.add(committed, 2, 0, committed=True)
    waiters.add(behind, 3, 5, committed=False)
    waiters.wake(5, 0)
    assert (plain.told, committed.told, behind.told) == ([(1, 0)], [], [])
    waiters.wake(6, 1)
    assert (plain.told, committed.told, behind.told) == ([(1, 0)], [(2, 0)], [(3, 5)])
    assert len(waiters) == 3
    waiters.remove(plain)
    waiters.remove(plain)
    waiters.wake_all()
    assert (plain.told, committed.told, behind.told) == ([(1, 0)], [(2, 0), (2, -1)], [(3, 5), (3, -1)])
    assert len(waiters) == 0


class CountedFile:
    """A file that counts the reads of its system."""

    def __init__(self, file: File, system: "CountedDisk") -> None:
        self._file = file
        self._system = system

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def read_at(self, position: int, length: int) -> bytes:
        self._system.reads += 1
        return self._file.read_at(position, length)


class CountedDisk(OsFileSystem):
    reads = 0

    def open(self, path: Path) -> File:
        return CountedFile(super().open(path), self)  # type: ignore[return-value]


def exchange(address: str, partitions: int, rounds: int) -> int:
    """Have a stock consumer wait for much more than stock producers bring at a time; return how much it got."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "fetch.min.bytes": 1_000_000,
            "fetch.wait.max.ms": 1000,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition("t", at, OFFSET_BEGINNING) for at in range(partitions)])
    producers = [Producer({"bootstrap.servers": address, "acks": acks}) for acks in ("1", "all")]
    consumer.poll(0.5)
    for number in range(rounds * partitions):
        producers[number % 2].produce("t", b"value", partition=number % partitions)
        if number % 10 == 0:
            producers[0].flush(10)
            producers[1].flush(10)
    assert not sum(producer.flush(30) for producer in producers)
    got, deadline = 0, time.monotonic() + 30
    while got < rounds * partitions and time.monotonic() < deadline:
        got += len(consumer.consume(10_000, 0.5))
    consumer.close()
    return got


async def test_a_stock_consumer_that_waits_for_much_makes_each_write_be_read_a_few_times(tmp_path: Path) -> None:
    partitions, rounds = 100, 10
    machine = RealMachine()
    machine.files = disk = CountedDisk()
    node = Node(BrokerConfig(data_dir=tmp_path, port=0), machine=machine)
    await node.start()
    try:
        await node.ensure_topic(
            CreateTopic(name="t", topic_id="1" * 32, partitions=partitions, overrides={"fluvial.durability": "memory"})
        )
        before = disk.reads
        assert await asyncio.to_thread(exchange, f"127.0.0.1:{node.port}", partitions, rounds) == rounds * partitions
        assert disk.reads - before < 6 * rounds * partitions
    finally:
        await node.stop()
