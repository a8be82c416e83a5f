"""Fetch sessions from request bytes to response bytes, on real logs: what a client sees in one is what is there."""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.fetch.session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSessions
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.handlers.data import fetch
from log_broker.server.net.memory_budget import MemoryBudget
from log_broker.server.partitions.log_manager import LogManager
from log_broker.storage.memory_files import MemoryFileSystem
from log_broker.wire.framing import RequestHeader

NOW_MS = 1_700_000_000_000
PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
MISSING = ("u", 9)
PLENTY = 1 << 20

Key = tuple[str, int]


class Node:
    """What the handler asks of a node."""

    authorizer = None
    habits = SimpleNamespace(is_looking=False)

    def __init__(self, logs: LogManager, *, slots_max: int = 10) -> None:
        self.logs = logs
        self.config = BrokerConfig(data_dir=Path("data"))
        self.waiting_fetches: dict[Any, deque[Any]] = {}
        self.fetch_sessions = FetchSessions(slots_max=slots_max)
        self.memory = MemoryBudget(asyncio.get_running_loop(), 1 << 30)

    def clock_ms(self) -> int:
        return NOW_MS

    def absence_of(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Slot:
    """Keeps what it is filled with; the only one of its connection."""

    must_wait = takes_stored = False

    def __init__(self) -> None:
        self.owner = self
        self.filled: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.closed = self.is_closed = False
        self.gone: Callable[[], None] = lambda: None

    def complete(self, *chunks) -> None:
        self.filled.set_result(b"".join(chunks))

    def on_close(self, callback: Callable[[], None]) -> None:
        self.gone = callback


class Found(NamedTuple):
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: bytes


class Response(NamedTuple):
    error: ErrorCode
    session_id: int
    found: dict[Key, Found]


def send(
    node: Node,
    session: tuple[int, int],
    asked: dict[Key, int],
    forgotten: tuple[Key, ...] = (),
    *,
    wait_ms: int = 0,
    bytes_max: int = PLENTY,
) -> Slot:
    """Send a Fetch version 11 that asks for partitions from an offset on."""
    body = struct.pack(">iiiibiii", -1, wait_ms, 1, bytes_max, 0, *session, len(asked))
    for (topic, partition), offset in asked.items():
        body += string(topic) + struct.pack(">iiiqqi", 1, partition, -1, offset, -1, PLENTY)
    body += struct.pack(">i", len(forgotten))
    for topic, partition in forgotten:
        body += string(topic) + struct.pack(">ii", 1, partition)
    slot = Slot()
    header = RequestHeader(api_key=1, api_version=11, correlation_id=42, client_id="test")
    fetch.handle(node, header, memoryview(body + string("")), slot)  # type: ignore[arg-type]
    return slot


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


async def received(slot: Slot) -> Response:
    response = await slot.filled
    _, _, error, session_id, topics = struct.unpack_from(">iihii", response)
    at = struct.calcsize(">iihii")
    found: dict[Key, Found] = {}
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", response, at)
        topic = response[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = struct.unpack_from(">i", response, at)
        at += 4
        for _ in range(count):
            partition, code, watermark, _, start, _, _, size = struct.unpack_from(">ihqqqiii", response, at)
            at += struct.calcsize(">ihqqqiii")
            assert (topic, partition) not in found
            found[topic, partition] = Found(ErrorCode(code), watermark, start, response[at : at + size])
            at += size
    assert at == len(response)
    return Response(ErrorCode(error), session_id, found)


@asynccontextmanager
async def broker(**options: int) -> AsyncIterator[Node]:
    loop = asyncio.get_running_loop()
    logs = LogManager(Path("logs"), loop, validator=None, clock_ms=lambda: NOW_MS, files=MemoryFileSystem())
    config = TopicConfig.from_overrides({"fluvial.durability": "memory"}, None)
    logs.open_all(lambda topic: config)
    for number, (topic, partition) in enumerate(PARTITIONS, 1):
        logs.create(topic, partition, UUID(int=number), config)
    try:
        yield Node(logs, **options)
    finally:
        await logs.close()


async def produce(node: Node, key: Key, value: bytes = b"value") -> None:
    runtime = node.logs.get(*key)
    assert runtime is not None
    await runtime.own_appends.records([(b"key", value)], NOW_MS)


BATCH_BYTES = len(build_batch([(NOW_MS, b"key", b"value", ())]))


async def open_session(node: Node, asked: dict[Key, int]) -> int:
    response = await received(send(node, (NO_SESSION, INITIAL_EPOCH), asked))
    assert set(response.found) == set(asked)
    assert response.session_id != NO_SESSION
    return response.session_id


async def test_a_session_is_begun_continued_and_closed() -> None:
    async with broker() as node:
        session = await open_session(node, {("t", 0): 0, ("u", 0): 0})
        assert await received(send(node, (session, 1), {})) == Response(ErrorCode.NONE, session, {})
        await produce(node, ("u", 0))
        response = await received(send(node, (session, 2), {}))
        assert [(key, len(found.records)) for key, found in response.found.items()] == [(("u", 0), BATCH_BYTES)]
        again = await received(send(node, (session, 2), {}))
        assert again == Response(ErrorCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION, {})
        response = await received(send(node, (session, FINAL_EPOCH), {("t", 0): 0}))
        assert (response.session_id, set(response.found)) == (NO_SESSION, {("t", 0)})
        gone = await received(send(node, (session, 3), {}))
        assert gone == Response(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, NO_SESSION, {})


async def test_a_continued_fetch_waits_for_what_the_session_holds() -> None:
    async with broker() as node:
        session = await open_session(node, {("t", 0): 0, ("t", 1): 0})
        slot = send(node, (session, 1), {}, wait_ms=60_000)
        await produce(node, ("u", 0))
        await asyncio.sleep(0.01)
        assert not slot.filled.done()
        await produce(node, ("t", 1))
        response = await received(slot)
        assert list(response.found) == [("t", 1)]
        slot = send(node, (session, 2), {("t", 1): 1}, wait_ms=60_000)
        await asyncio.sleep(0.01)
        assert not slot.filled.done(), "what has been read is not changes"
        slot.closed = True
        slot.gone()


async def test_a_continued_fetch_that_finds_no_changes_ends_empty() -> None:
    async with broker() as node:
        session = await open_session(node, {("t", 0): 0})
        assert await received(send(node, (session, 1), {}, wait_ms=1)) == Response(ErrorCode.NONE, session, {})


async def test_a_session_without_partitions_is_answered_at_once_and_ends() -> None:
    async with broker() as node:
        session = await open_session(node, {("t", 0): 0})
        response = await received(send(node, (session, 1), {}, (("t", 0),), wait_ms=60_000))
        assert response == Response(ErrorCode.NONE, NO_SESSION, {})
        assert len(node.fetch_sessions) == 0


async def test_a_client_that_is_gone_before_its_response_leaves_no_session() -> None:
    async with broker() as node:
        slot = send(node, (NO_SESSION, INITIAL_EPOCH), {("t", 0): 0}, wait_ms=60_000)
        slot.closed = True
        slot.gone()
        await produce(node, ("t", 0))
        await asyncio.sleep(0)
        assert len(node.fetch_sessions) == 0


async def test_without_a_slot_full_fetches_go_on() -> None:
    async with broker(slots_max=0) as node:
        response = await received(send(node, (NO_SESSION, INITIAL_EPOCH), {("t", 0): 0}))
        assert (response.error, response.session_id, set(response.found)) == (ErrorCode.NONE, NO_SESSION, {("t", 0)})


async def test_full_responses_give_every_partition_its_turn() -> None:
    async with broker() as node:
        for key in PARTITIONS:
            for _ in range(3):
                await produce(node, key)
        client = Client(node, bytes_max=BATCH_BYTES)
        client.wanted = dict.fromkeys(PARTITIONS, 0)
        turns = []
        for _ in range(6):
            before = dict(client.wanted)
            await client.fetch()
            turns += [key for key in PARTITIONS if client.wanted[key] != before[key]]
        assert turns == [*PARTITIONS, *PARTITIONS]


@dataclass
class Client:
    """A consumer that keeps a session as the Java client does, and what it has been told of each partition."""

    node: Node
    bytes_max: int = PLENTY
    session_id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    wanted: dict[Key, int] = field(default_factory=dict)
    known: dict[Key, int] = field(default_factory=dict)  # what the broker has been told
    view: dict[Key, Found] = field(default_factory=dict)
    records: dict[Key, bytes] = field(default_factory=dict)

    def add(self, key: Key, offset: int) -> None:
        self.wanted[key] = offset
        self.records[key] = b""

    async def fetch(self) -> None:
        while not await self._fetch_once():
            continue

    async def _fetch_once(self) -> bool:
        """Fetch once; False when the session was refused and a full request has to follow."""
        if self.epoch == INITIAL_EPOCH:
            self.known.clear()
            self.view.clear()
        asked = {key: offset for key, offset in self.wanted.items() if self.known.get(key) != offset}
        forgotten = tuple(key for key in self.known if key not in self.wanted)
        slot = send(self.node, (self.session_id, self.epoch), asked, forgotten, bytes_max=self.bytes_max)
        response = await received(slot)
        if response.error is not ErrorCode.NONE:
            assert self.epoch != INITIAL_EPOCH, "a full request is never refused"
            if response.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            self.epoch = INITIAL_EPOCH
            return False
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else INITIAL_EPOCH
        self.known = dict(self.wanted)
        self._take(response.found)
        return True

    def _take(self, found: dict[Key, Found]) -> None:
        assert set(found) <= set(self.wanted)
        for key in [key for key in self.view if key not in self.wanted]:
            del self.view[key]
        for key, changes in found.items():
            self.view[key] = changes
            self.records[key] = self.records.get(key, b"") + changes.records
            self.wanted[key] += len(changes.records) // BATCH_BYTES


async def sessionless(node: Node, asked: dict[Key, int]) -> dict[Key, Found]:
    return (await received(send(node, (NO_SESSION, FINAL_EPOCH), asked))).found


async def compare(client: Client) -> None:
    """Fetch once and compare with what there is to see without a session."""
    offsets = dict(client.wanted)
    before = {key: client.records.get(key, b"") for key in offsets}
    there = await sessionless(client.node, offsets)
    await client.fetch()
    for key, true in there.items():
        seen = client.view[key]
        assert (seen.error, seen.high_watermark, seen.log_start_offset) == true[:3], key
        fresh = client.records[key][len(before[key]) :]
        assert true.records.startswith(fresh), key
    if any(true.records for true in there.values()):
        assert client.wanted != offsets, "there was something and nothing came"
    if client.bytes_max == PLENTY:
        assert all(
            client.wanted[key] == offset + len(there[key].records) // BATCH_BYTES for key, offset in offsets.items()
        )


async def lose_position(client: Client, key: Key) -> None:
    if key in client.wanted:
        client.add(key, 1000)


async def move_log_start(client: Client, key: Key) -> None:
    runtime = client.node.logs.get(*key)
    if runtime is not None:
        runtime.keeping.delete_records((runtime.log_start_offset + runtime.high_watermark + 1) // 2)


async def want(client: Client, key: Key) -> None:
    runtime = client.node.logs.get(*key)
    client.add(key, 0 if runtime is None else runtime.log_start_offset)


async def forget(client: Client, key: Key) -> None:
    client.wanted.pop(key, None)


async def write(client: Client, key: Key) -> None:
    if client.node.logs.get(*key) is not None:
        await produce(client.node, key)


async def fetch_full(client: Client, key: Key) -> None:
    client.bytes_max = PLENTY
    await compare(client)


async def fetch_little(client: Client, key: Key) -> None:
    client.bytes_max = BATCH_BYTES
    await compare(client)


async def lose_session(client: Client, key: Key) -> None:
    client.node.fetch_sessions = FetchSessions(slots_max=10)


async def lose_response(client: Client, key: Key) -> None:
    """The broker's epoch goes on and the client's does not."""
    if client.epoch != INITIAL_EPOCH:
        await received(send(client.node, (client.session_id, client.epoch), {}))


Step = Callable[[Client, Key], Awaitable[None]]
STEPS: list[Step] = [
    *([write, fetch_full, fetch_little] * 3),
    *([want, forget, move_log_start] * 2),
    lose_position,
    lose_session,
    lose_response,
]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from([*PARTITIONS, MISSING])), min_size=30, max_size=30
    ),
    slots_max=st.sampled_from([1, 1, 1, 1, 0]),
)
def test_a_client_in_a_session_sees_what_is_there(steps, slots_max) -> None:
    async def story() -> None:
        async with broker(slots_max=slots_max) as node:
            client = Client(node)
            for key in PARTITIONS:
                await want(client, key)
            for step, key in steps:
                await step(client, key)
            await fetch_full(client, MISSING)

    asyncio.run(story())
