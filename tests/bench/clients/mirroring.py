"""What a mirror brings readers who are far from a cluster, and the cluster whose readers go to the mirror."""

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from examples.mirror import Mirror
from tests.bench.clients.measure import PATIENCE_SECONDS, Figure, nodes, quantile, read
from tests.free_ports import free_ports

TOPIC = "orders"
DISTANCE_SECONDS = 0.1
"""From one site to the other and back."""
GROUPS = 5


class Link:
    """Carries bytes between 127.0.0.2 and 127.0.0.1, on one port, and takes its time; `sent` are those to clients."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Link":
        self._thread.start()
        serving = asyncio.start_server(self._carry, "127.0.0.2", self._port)
        asyncio.run_coroutine_threadsafe(serving, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for each in carrying:
            each.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            up = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._pump(reader, up[1], counted=False), self._pump(up[0], writer, counted=True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool) -> None:
        while data := await reader.read(1 << 16):
            self.sent += len(data) * counted
            # What was sent later arrives later: the delay is the same for all.
            self._loop.call_later(DISTANCE_SECONDS / 2, writer.write, data)
        self._loop.call_later(DISTANCE_SECONDS / 2, writer.close)


def mirroring(size: float) -> Iterator[Figure]:
    """A cluster 100 ms away and its mirror here: reading a record, seeing a new one, what five groups make it send."""
    count = int(100_000 * size)
    with (
        tempfile.TemporaryDirectory(prefix="bench-clients-") as folder,
        _far(Path(folder)) as (link, far),
        nodes(1) as here,
    ):
        admin = AdminClient({"bootstrap.servers": far})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        producer = Producer({"bootstrap.servers": far, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000})
        for at in range(count):
            producer.produce(TOPIC, b"%090d" % at)
        producer.flush(PATIENCE_SECONDS)
        stop = threading.Event()
        with Mirror(far, here.address, TOPIC) as mirror:
            began = time.perf_counter()
            copied = 0
            while copied < count:
                copied += mirror.step()
            yield Figure(
                group="mirror",
                choice="the mirror",
                what="records/s copied",
                value=count / (time.perf_counter() - began),
            )
            mirroring = threading.Thread(target=mirror.run, args=(stop.is_set,))
            mirroring.start()
            try:
                for choice, servers in (("read from afar", far), ("read from the mirror", here.address)):
                    yield Figure(group="mirror", choice=choice, what="p50 ms to read one", value=_one(servers, count))
                    yield Figure(
                        group="mirror", choice=choice, what="p50 ms send to sight", value=_sight(producer, servers)
                    )
                for choice, servers in (("read from afar", far), ("read from the mirror", here.address)):
                    before = link.sent
                    _groups(servers, count)
                    value = (link.sent - before) / 1e6
                    yield Figure(group="mirror", choice=choice, what=f"MB sent by it for {GROUPS} groups", value=value)
            finally:
                stop.set()
                mirroring.join()


@contextmanager
def _far(folder: Path) -> Iterator[tuple[Link, str]]:
    (port,) = free_ports(1)
    words = ["--data-dir", str(folder / "far"), "--port", str(port), "--advertised-host", "127.0.0.2"]
    with Link(port) as link:
        process = subprocess.Popen([sys.executable, "-m", "log_broker", *words], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if not process.stdout.readline().startswith("listening"):
                raise RuntimeError("the far broker does not start")
            yield link, f"127.0.0.2:{port}"
        finally:
            process.kill()
            process.communicate()


def _client(servers: str, offset: int) -> Consumer:
    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "none", "fetch.wait.max.ms": 50}
    client = Consumer({**settings, "fetch.queue.backoff.ms": 0, "isolation.level": "read_committed", "log_level": 0})
    client.assign([TopicPartition(TOPIC, 0, offset)])
    return client


def _one(servers: str, count: int) -> float:
    client, times = _client(servers, 0), []
    read(client, 1)
    for at in range(20):
        began = time.perf_counter()
        client.seek(TopicPartition(TOPIC, 0, (at * 997) % count))
        read(client, 1)
        times.append((time.perf_counter() - began) * 1000)
    client.close()
    return quantile(sorted(times), 0.5)


def _sight(producer: Producer, servers: str) -> float:
    start = _client(servers, 0)
    end = start.get_watermark_offsets(TopicPartition(TOPIC, 0), 30)[1]
    start.close()
    times: list[float] = []
    client = _client(servers, end)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(times) < 30:
        producer.produce(TOPIC, json.dumps(time.perf_counter()))
        producer.flush(30)
        while (message := client.poll(1)) is None or message.error() is not None:
            if time.monotonic() > deadline:
                raise RuntimeError("records do not come")
        value = message.value()
        assert value is not None
        times.append((time.perf_counter() - json.loads(value)) * 1000)
    client.close()
    return quantile(sorted(times), 0.5)


def _groups(servers: str, count: int) -> None:
    clients = [_client(servers, 0) for _ in range(GROUPS)]
    readers = [threading.Thread(target=read, args=(client, count)) for client in clients]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for client in clients:
        client.close()
