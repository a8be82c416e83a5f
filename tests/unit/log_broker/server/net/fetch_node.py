"""The Fetch handler on partitions in memory, without connections."""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.fetch.session import FetchSessions
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.handlers.data import fetch
from log_broker.server.net.memory_budget import MemoryBudget
from log_broker.server.partitions.log_manager import LogManager
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
    habits = SimpleNamespace(is_looking=False)

    def __init__(self, logs: LogManager, files: Any, memory_limit: int) -> None:
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
    must_wait = takes_stored = False
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
async def broker(
    partitions: int, *, memory_limit: int = 1 << 30, files: MemoryFileSystem | None = None, **overrides: str
) -> AsyncIterator[FakeNode]:
    """Run the partitions of a topic `t`, on these files or on such as are counted."""
    files = files or CountedFiles()
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
