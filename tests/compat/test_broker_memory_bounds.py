"""What a broker's process takes for clients that promise, send and ask much: its limit and little more, by its RSS."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from log_broker.records import build_batch
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel tells of memory by /proc"),
]

MIB = 1 << 20
LIMIT = 32 * MIB
REQUEST_MAX = 8 * MIB
BESIDE = 16 * MIB  # what is taken beside the limit, whatever clients send
SHARE = 64 * 1024  # of each connection


class Client:
    """One connection that speaks frames and reads nothing ahead of what it is asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        await self.send(framed(key, version, values))
        return read_response(key, version, memoryview(await self.receive())[4:])


class Clients:
    """Connections to a broker's process, and how much memory that has taken at the most."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._open: list[Client] = []
        self._resting = self._figure("VmRSS")

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._broker.port, limit=4096))
        self._open.append(client)
        return client

    async def clients(self, count: int) -> list[Client]:
        return [await self.client() for _ in range(count)]

    def rest(self) -> None:
        """Measure from here on."""
        self._resting = self._figure("VmRSS")

    def grown(self) -> int:
        """The most bytes that the process has had beyond what it rested at."""
        return self._figure("VmHWM") - self._resting

    def close(self) -> None:
        for client in self._open:
            client.writer.transport.abort()

    def _figure(self, name: str) -> int:
        lines = Path(f"/proc/{self._broker.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def framed(key: ApiKey, version: int, values: dict[str, Any]) -> bytes:
    request = write_request(key, version, 1, "test", values)
    return struct.pack(">i", len(request)) + bytes(request)


def produced(value: bytes) -> dict[str, Any]:
    records = bytes(build_batch([(1, b"k", value, ())]))
    topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [topic]}


def long_poll(wait_ms: int = 300_000) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MIB}
    return framed(
        ApiKey.FETCH,
        11,
        {
            "replica_id": -1,
            "max_wait": wait_ms,
            "min_bytes": 1 << 30,
            "max_bytes": 1 << 30,
            "topics": [{"topic": "t", "partitions": [partition]}],
            "forgotten_topics_data": (),
        },
    )


async def made(client: Client, name: str, partitions: int = 1) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
    answer = await client.ask(ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 60_000, "validate_only": False})
    assert answer.topics[0].error_code == 0


async def small_requests_are_answered(clients: Clients) -> None:
    client = await clients.client()
    for _ in range(5):
        answer = await client.ask(ApiKey.PRODUCE, 9, produced(b"good"))
        assert answer.responses[0].partition_responses[0].error_code == 0


@asynccontextmanager
async def clients_of(broker: Any, *settings: str) -> AsyncIterator[Clients]:
    """A broker with settings, started afresh."""
    broker.words = (*broker.words, *(word for setting in settings for word in ("--set", setting)))
    broker.stop()
    broker.start()
    clients = Clients(broker)
    try:
        client = await clients.client()
        await made(client, "t")
        await small_requests_are_answered(clients)
        clients.rest()
        yield clients
    finally:
        clients.close()


def with_small_limits(test: Callable[[Clients], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Run a test on a broker of LIMIT and REQUEST_MAX."""

    async def run(own_broker: Any) -> None:
        limits = (f"queued.max.request.bytes={LIMIT}", f"socket.request.max.bytes={REQUEST_MAX}")
        async with clients_of(own_broker, *limits) as clients:
            await test(clients)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def test_lengths_that_are_only_announced_take_no_memory(own_broker: Any) -> None:
    async with clients_of(own_broker) as clients:
        for client in await clients.clients(60):
            await client.send(struct.pack(">i", 100 * MIB) + b"\0\x12\0\0\0\0\0\1")
        for client in await clients.clients(1000):
            await client.send(struct.pack(">i", 50 * MIB) + b"\0\x12\0\0\0\0\0\1\0\0")
        await small_requests_are_answered(clients)
        assert clients.grown() < BESIDE


@with_small_limits
async def test_requests_that_end_short_of_their_end_take_the_limit_and_all_can_be_finished(clients: Clients) -> None:
    request = framed(ApiKey.PRODUCE, 9, produced(bytes(REQUEST_MAX - 1000)))
    assert len(request) <= REQUEST_MAX
    count = 20
    senders = await clients.clients(count)
    sending = [asyncio.create_task(sender.send(request[:-1])) for sender in senders]
    await asyncio.wait(sending, timeout=2)
    assert not all(task.done() for task in sending), "they do not fit all at once"
    await small_requests_are_answered(clients)
    assert clients.grown() < LIMIT + BESIDE // 2 + count * SHARE

    async def finish(sender: Client, task: "asyncio.Task[None]") -> None:
        await task
        await sender.send(request[-1:])
        assert len(await sender.receive()) > 0

    await asyncio.gather(*map(finish, senders, sending))
    assert clients.grown() < LIMIT + BESIDE // 2 + count * SHARE


@with_small_limits
async def test_rows_of_tiny_requests_behind_a_long_poll_take_the_bytes_that_they_have(clients: Clients) -> None:
    tiny = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1)
    count = 60
    for client in await clients.clients(count):
        client.writer.write(long_poll() + tiny * 30_000)
    await asyncio.sleep(1)
    await small_requests_are_answered(clients)
    assert clients.grown() < LIMIT + BESIDE + count * SHARE


@with_small_limits
async def test_long_answers_that_nobody_reads_take_the_limit_and_all_are_given(clients: Clients) -> None:
    client = await clients.client()
    await made(client, "many", partitions=1000)
    everything = framed(ApiKey.METADATA, 1, {"topics": None})
    await client.send(everything)
    length = len(await client.receive())
    clients.rest()
    count, times = 40, 500
    assert length * count * times > 10 * LIMIT
    readers = await clients.clients(count)
    for reader in readers:
        reader.writer.write(everything * times)
    await asyncio.sleep(2)
    await small_requests_are_answered(clients)
    assert clients.grown() < LIMIT + BESIDE + 2 * count * SHARE
    for reader in readers[1:]:
        reader.writer.transport.abort()
    for _ in range(times):
        assert len(await readers[0].receive()) == length


@with_small_limits
async def test_what_is_named_again_and_again_is_answered_once(clients: Clients) -> None:
    client = await clients.client()
    await made(client, "many", partitions=1000)
    clients.rest()
    topics = [{"name": "many"}] * 5000
    answer = await client.ask(ApiKey.METADATA, 4, {"topics": topics, "allow_auto_topic_creation": False})
    assert [topic.name for topic in answer.topics] == ["many"]
    assert clients.grown() < BESIDE
