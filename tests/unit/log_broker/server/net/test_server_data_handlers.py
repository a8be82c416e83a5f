"""Produce, Fetch and ListOffsets from request bytes to response bytes, on real logs, without a socket."""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_cluster import eventually

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.fetch.session import FetchSessions
from log_broker.core.partition.replication import Leadership
from log_broker.errors import ErrorCode
from log_broker.records import Codec, batches_in, build_batch
from log_broker.server.handlers.data import fetch, list_offsets, produce
from log_broker.server.net.memory_budget import MemoryBudget
from log_broker.server.partitions.ack_deadlines import QUEUES_MAX, AckDeadlines
from log_broker.server.partitions.log_manager import LogManager
from log_broker.wire import fetch as fetch_wire
from log_broker.wire import list_offsets as list_offsets_wire
from log_broker.wire import produce as produce_wire
from log_broker.wire.framing import RequestHeader
from log_broker.wire.reading import MalformedRequestError

NOW_MS = 1_700_000_000_000


class Node:
    """What the handlers ask of a node."""

    authorizer = None
    habits = SimpleNamespace(is_looking=False)

    def __init__(self, logs: LogManager) -> None:
        self.logs = logs
        self.config = BrokerConfig(data_dir=Path("data"))
        self.waiting_fetches: dict[Any, deque[Callable[[], bool]]] = {}
        self.fetch_sessions = FetchSessions(slots_max=10)
        self.memory = MemoryBudget(asyncio.get_running_loop(), 1 << 30)
        self.ack_deadlines = AckDeadlines(asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._tasks.discard)

    def clock_ms(self) -> int:
        return NOW_MS

    def absence_of(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Slot:
    """Keeps what it is filled with; the only one of its connection."""

    must_wait = takes_stored = False

    def __init__(self) -> None:
        self.owner = self
        self.filled: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.failure: str | None = None
        self.request = bytearray()
        self.closed = self.is_closed = False
        self.callbacks: list[Callable[[], None]] = []

    def complete(self, *chunks) -> None:
        self.filled.set_result(b"".join(chunks))

    def complete_framed(self, response) -> None:
        assert int.from_bytes(response[:4], "big") == len(response) - 4
        self.filled.set_result(response[4:])

    def skip(self) -> None:
        self.filled.set_result(None)

    def fail_connection(self, reason: str) -> None:
        self.failure = reason
        self.closed = True
        self.filled.set_result(None)

    def on_close(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class HeldClock:
    """What deadlines use of a loop; its time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer.when() <= self.now]
        self._timers = [timer for timer in self._timers if timer.when() > self.now]
        for timer in due:
            if not timer.cancelled():
                timer._run()


@dataclass
class Broker:
    """A node with the topic `t` of two partitions, spoken to in the older, fixed layouts."""

    node: Node

    def send(self, handler, key: int, version: int, body: bytes) -> Slot:
        slot = Slot()
        header = RequestHeader(api_key=key, api_version=version, correlation_id=42, client_id="test")
        slot.request = bytearray(body)
        handler(self.node, header, memoryview(slot.request), slot)
        return slot

    def produce(
        self,
        *batches: tuple[int, bytes | None],
        acks: int = -1,
        version: int = 8,
        topic: str = "t",
        timeout_ms: int = 1000,
    ) -> Slot:
        body = (b"\xff\xff" if version >= 3 else b"") + struct.pack(">hii", acks, timeout_ms, 1) + _string(topic)
        body += struct.pack(">i", len(batches))
        for partition, batch in batches:
            body += struct.pack(">i", partition)
            body += struct.pack(">i", -1) if batch is None else struct.pack(">i", len(batch)) + batch
        return self.send(produce.handle, 0, version, body)

    def fetch(
        self,
        *asked: tuple[int, int],
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_bytes: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
        epoch: int = -1,
    ) -> Slot:
        body = struct.pack(">iiiibiii", -1, wait_ms, min_bytes, max_bytes, 0, *session, 1) + _string("t")
        body += struct.pack(">i", len(asked))
        for partition, offset in asked:
            body += struct.pack(">iiqqi", partition, epoch, offset, -1, partition_bytes)
        return self.send(fetch.handle, 1, 11, body + struct.pack(">i", 0) + _string(""))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@pytest.fixture
async def broker(tmp_path) -> AsyncIterator[Broker]:
    logs = LogManager(tmp_path, asyncio.get_running_loop(), validator=None, clock_ms=lambda: NOW_MS)
    config = TopicConfig.from_overrides({"fluvial.durability": "memory"}, None)
    logs.open_all(lambda topic: config)
    for partition in (0, 1):
        logs.create("t", partition, UUID(int=partition + 1), config)
    yield Broker(Node(logs))
    await logs.close()


def batch(*values: bytes, **fields) -> bytes:
    return bytes(build_batch([(NOW_MS, b"k", value, ()) for value in values], **fields))


async def produced(slot: Slot) -> list[tuple[int, ErrorCode, int]]:
    """Read (partition, error, base offset) from a version 8 response about one topic."""
    response = await slot.filled
    assert response is not None
    reader = SimpleNamespace(at=4 + 4 + 2 + 1)
    (count,) = struct.unpack_from(">i", response, reader.at)
    reader.at += 4
    found = []
    for _ in range(count):
        partition, error, offset, _, _, errors = struct.unpack_from(">ihqqqi", response, reader.at)
        reader.at += struct.calcsize(">ihqqqi")
        for _ in range(errors):
            (length,) = struct.unpack_from(">h", response, reader.at + 4)
            reader.at += 6 + length
        (length,) = struct.unpack_from(">h", response, reader.at)
        reader.at += 2 + max(length, 0)
        found.append((partition, ErrorCode(error), offset))
    assert response[reader.at :] == bytes(4), "the throttle time"
    assert response[:4] == struct.pack(">i", 42)
    return found


async def fetched(slot: Slot) -> list[tuple[int, ErrorCode, int, bytes]]:
    """Read (partition, error, high watermark, records) from a version 11 response about one topic."""
    response = await slot.filled
    assert response is not None
    at = 4 + 4 + 2 + 4 + 4 + 2 + 1
    (count,) = struct.unpack_from(">i", response, at)
    at += 4
    found = []
    for _ in range(count):
        partition, error, watermark, _, _, _, _, size = struct.unpack_from(">ihqqqiii", response, at)
        at += struct.calcsize(">ihqqqiii")
        found.append((partition, ErrorCode(error), watermark, response[at : at + size]))
        at += size
    assert at == len(response)
    return found


async def test_batches_of_several_partitions_are_answered_together(broker) -> None:
    answers = await produced(broker.produce((0, batch(b"a", b"b")), (1, batch(b"c"))))
    assert answers == [(0, ErrorCode.NONE, 0), (1, ErrorCode.NONE, 0)]
    assert await produced(broker.produce((0, batch(b"d")))) == [(0, ErrorCode.NONE, 2)]
    ((_, _, watermark, records), (_, _, _, others)) = await fetched(broker.fetch((0, 0), (1, 0)))
    assert watermark == 3
    assert [header.record_count for _, header in batches_in(records)] == [2, 1]
    assert [header.record_count for _, header in batches_in(others)] == [1]


async def test_one_bad_partition_does_not_spoil_the_others(broker) -> None:
    torn = batch(b"a")[:-1]
    answers = await produced(broker.produce((0, torn), (1, batch(b"b")), (9, batch(b"c"))))
    assert [error for _, error, _ in answers] == [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    answers = await produced(broker.produce((0, None), (1, batch(b"d"))))
    assert [error for _, error, _ in answers] == [ErrorCode.INVALID_RECORD, ErrorCode.NONE]


async def test_acks_that_do_not_exist(broker) -> None:
    assert await produced(broker.produce((0, batch(b"a")), acks=2)) == [(0, ErrorCode.INVALID_REQUIRED_ACKS, -1)]
    assert broker.node.logs.get("t", 0).log_end_offset == 0


async def test_acks_0_has_no_response_and_its_failures_end_the_connection(broker) -> None:
    slot = broker.produce((0, batch(b"a")), acks=0)
    assert await slot.filled is None
    assert slot.failure is None
    slot = broker.produce((0, batch(b"a")[:-1]), acks=0)
    assert "CORRUPT_MESSAGE" in (slot.failure or "")


@pytest.mark.parametrize(
    ("version", "records", "code"),
    [
        (2, batch(b"v")[:16] + b"\1" + batch(b"v")[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (3, batch(b"v")[:16] + b"\1" + batch(b"v")[17:], ErrorCode.INVALID_RECORD),
        (6, batch(b"v", codec=Codec.ZSTD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, batch(b"v", codec=Codec.ZSTD), ErrorCode.NONE),
        (0, batch(b"v"), ErrorCode.NONE),
    ],
)
async def test_old_versions_are_answered_in_their_layout(broker, version, records, code) -> None:
    response = await broker.produce((0, records), version=version).filled
    partition, error, _ = struct.unpack_from(">ihq", response, 4 + 4 + 2 + 1 + 4)
    assert (partition, error) == (0, code)
    layout = ">ihq" if version < 2 else ">ihqq" if version < 5 else ">ihqqq"
    assert len(response) == 4 + 4 + 2 + 1 + 4 + struct.calcsize(layout) + (4 if version >= 1 else 0)


async def test_a_fetch_waits_for_records_and_no_longer(broker) -> None:
    slot = broker.fetch((0, 0), (1, 0), wait_ms=60_000)
    await asyncio.sleep(0.01)
    assert not slot.filled.done()
    await produced(broker.produce((1, batch(b"a"))))
    ((_, _, _, nothing), (_, _, watermark, records)) = await fetched(slot)
    assert nothing == b""
    assert watermark == 1
    assert len(list(batches_in(records))) == 1


async def test_a_fetch_waits_until_there_is_enough(broker) -> None:
    slot = broker.fetch((0, 0), wait_ms=60_000, min_bytes=3 * len(batch(b"a")))
    for _ in range(2):
        await produced(broker.produce((0, batch(b"a"))))
        await asyncio.sleep(0)
        assert not slot.filled.done()
    await produced(broker.produce((0, batch(b"a"))))
    ((_, _, _, records),) = await fetched(slot)
    assert len(list(batches_in(records))) == 3


async def test_a_fetch_ends_empty_when_its_time_is_up(broker) -> None:
    assert await fetched(broker.fetch((0, 0), wait_ms=1)) == [(0, ErrorCode.NONE, 0, b"")]
    assert await fetched(broker.fetch((0, 0), wait_ms=0)) == [(0, ErrorCode.NONE, 0, b"")]


async def test_a_fetch_whose_client_is_gone_leaves_nothing_behind(broker) -> None:
    slot = broker.fetch((0, 0), wait_ms=60_000)
    (callback,) = slot.callbacks
    slot.closed = True
    callback()
    await produced(broker.produce((0, batch(b"a"))))
    await asyncio.sleep(0)
    assert not slot.filled.done()
    assert not len(broker.node.logs.get("t", 0).waiters)


async def test_something_wrong_is_answered_at_once(broker) -> None:
    slot = broker.fetch((0, 0), (1, 77), (5, 0), wait_ms=60_000)
    assert [(p, error) for p, error, *_ in await fetched(slot)] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert (await fetched(broker.fetch((0, 0), epoch=3)))[0][1] is ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_the_bounds_of_a_fetch_hold_over_all_partitions(broker) -> None:
    one = batch(b"x" * 500)
    for partition in (0, 1):
        for _ in range(10):
            await produced(broker.produce((partition, one)))
    found = await fetched(broker.fetch((0, 0), (1, 0), max_bytes=3 * len(one)))
    assert [len(records) for *_, records in found] == [3 * len(one), 0]
    found = await fetched(broker.fetch((0, 0), (1, 0), partition_bytes=2 * len(one) + 5))
    assert [len(records) for *_, records in found] == [2 * len(one), 2 * len(one)]
    # A first batch larger than every bound is returned all the same, or its reader would never go on; a second is not.
    found = await fetched(broker.fetch((0, 0), (1, 0), max_bytes=1, partition_bytes=1))
    assert [len(records) for *_, records in found] == [len(one), 0]


async def test_a_topic_deleted_under_a_waiting_fetch_answers_it(broker) -> None:
    slot = broker.fetch((0, 0), wait_ms=60_000)
    broker.node.logs.delete("t", 0)
    assert [(p, error) for p, error, *_ in await fetched(slot)] == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_an_unknown_session_is_refused_at_once(broker) -> None:
    response = await broker.fetch((0, 0), session=(5, 3), wait_ms=60_000).filled
    assert response == struct.pack(">iihii", 42, 0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)


@pytest.mark.parametrize(
    ("timestamp", "answer"),
    [
        (-1, (-1, 3)),
        (-2, (-1, 0)),
        (0, (NOW_MS, 0)),
        (NOW_MS + 1, (NOW_MS + 9, 2)),
        (NOW_MS + 10, (-1, -1)),
    ],
)
async def test_offsets_are_listed(broker, timestamp, answer) -> None:
    records = build_batch([(NOW_MS + late, b"k", b"v", ()) for late in (0, 0, 9)])
    await produced(broker.produce((0, bytes(records))))
    body = struct.pack(">ibi", -1, 0, 1) + _string("t") + struct.pack(">iiiqiiq", 2, 0, -1, timestamp, 7, -1, -1)
    response = await broker.send(list_offsets.handle, 2, 5, body).filled
    at = 4 + 4 + 4 + 2 + 1 + 4
    partition, error, found_time, offset, _ = struct.unpack_from(">ihqqi", response, at)
    assert (partition, error) == (0, ErrorCode.NONE)
    assert (found_time, offset) == answer
    assert struct.unpack_from(">ih", response, at + 26) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("partitions", [[0], [0, 1]])
async def test_acks_all_waits_for_followers_as_long_as_the_client_allows(broker, partitions) -> None:
    led = Leadership(leader_epoch=1, partition_epoch=1, replicas=(0, 1), isr=(0, 1))
    broker.node.logs.get("t", 0).role.become_leader(led)
    clock = HeldClock()
    broker.node.ack_deadlines = AckDeadlines(clock)
    asked = [(partition, batch(b"x")) for partition in partitions]
    late = broker.produce(*asked, timeout_ms=20)
    in_time = broker.produce(*asked, timeout_ms=60_000)
    for partition in partitions:
        runtime = broker.node.logs.get("t", partition)
        await eventually(lambda runtime=runtime: runtime.log_end_offset == 2)
    clock.advance(0.02)
    errors = {partition: error for partition, error, _ in await produced(late)}
    assert errors == {at: ErrorCode.NONE if at else ErrorCode.REQUEST_TIMED_OUT for at in partitions}
    assert not in_time.filled.done()
    broker.node.logs.get("t", 0).leading.follower_fetched(1, 1, 2, 0)
    assert [error for _, error, _ in await produced(in_time)] == [ErrorCode.NONE] * len(partitions)
    alone = [error for _, error, _ in await produced(broker.produce((1, batch(b"x")), timeout_ms=0))]
    assert alone == [ErrorCode.NONE], "who leads alone waits for nobody"


def is_let_go_of(memory: bytearray) -> bool:
    """Whether no view of it is left."""
    try:
        memory.append(0)
    except BufferError:
        return False
    return True


async def test_the_records_of_a_request_are_let_go_of_long_before_its_time_is_up(broker) -> None:
    led = Leadership(leader_epoch=1, partition_epoch=1, replicas=(0, 1), isr=(0, 1))
    leader = broker.node.logs.get("t", 0)
    leader.role.become_leader(led)
    slot = broker.produce((0, batch(b"x")), (1, batch(b"x")), timeout_ms=60_000)
    assert not is_let_go_of(slot.request)
    await eventually(lambda: leader.log_end_offset == 1)
    leader.leading.follower_fetched(1, 1, 1, 0)
    await produced(slot)
    await eventually(lambda: is_let_go_of(slot.request))


class Request:
    """A request that waits for followers."""

    is_answered = False

    def time_is_up(self) -> None:
        self.is_answered = True


async def test_ever_other_timeouts_share_queues_and_an_end() -> None:
    clock = HeldClock()
    deadlines = AckDeadlines(clock)
    requests = [Request() for _ in range(1000)]
    for at, request in enumerate(requests):
        deadlines.add(request, 1000 + at)
    assert len(deadlines._queues) <= QUEUES_MAX + 31
    clock.advance(1.0)
    assert [request.is_answered for request in requests] == [True] + [False] * 999
    clock.advance(1.1)
    assert all(request.is_answered for request in requests)
    for_ever = Request()
    deadlines.add(for_ever, 2**31 - 1)
    clock.advance(15 * 60)
    assert for_ever.is_answered


@pytest.mark.parametrize("handler", [produce.handle, fetch.handle, list_offsets.handle])
async def test_bytes_that_are_no_request_end_the_connection(broker, handler) -> None:
    for body in (b"", b"\xff" * 7, b"\x7f" * 40):
        slot = broker.send(handler, 0, 7, body)
        await asyncio.sleep(0)
        assert slot.failure


@given(body=st.binary(max_size=200), version=st.integers(0, 17))
def test_no_bytes_get_past_the_parsers(body, version) -> None:
    for module, versions in (
        (produce_wire, range(10)),
        (fetch_wire, range(4, 18)),
        (list_offsets_wire, range(1, 11)),
    ):
        if version in versions:
            try:
                module.parse_request(memoryview(body), version)
            except MalformedRequestError:
                continue
