"""Readers of what is not in the page cache wait for the disk in threads: nobody else waits with them."""

import asyncio
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from fetch_node import BATCH, FakeNode, Owner, Slot, broker, eventually, send

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import ErrorCode
from log_broker.server.handlers.data import fetch
from log_broker.server.node import Node
from log_broker.storage.files import OsFileSystem
from log_broker.storage.memory_files import MemoryFile, MemoryFileSystem

PER_SEGMENT = 3


class ColdFile(MemoryFile):
    """A file of which the page cache holds only what was loaded."""

    __slots__ = ("disk", "path")
    disk: "SlowDisk"
    path: Path

    def is_cached(self, position: int, length: int) -> bool:
        return self.disk.cached(self.path)


class SlowDisk(MemoryFileSystem):
    """Whose reads of files that are not cached take until `answers` is set; it forgets what it holds after so many."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.is_cold = False
        self.keeps = True
        self.loaded: list[str] = []

    def open(self, path: Path) -> MemoryFile:
        file = super().open(path)
        cold = ColdFile(file._inode, self)
        cold.disk, cold.path = self, path
        return cold

    def cached(self, path: Path) -> bool:
        return not self.is_cold or (self.keeps and path.name in self.loaded)

    def load(self, path: Path, position: int, length: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert self.answers.wait(60)
        self.loaded.append(path.name)


async def written(node: FakeNode, disk: SlowDisk) -> None:
    """Write two segments and the beginning of a third, of which a mebibyte would be in memory, and have all go cold."""
    for _ in range(2 * PER_SEGMENT + 1):
        await node.written([0])
    runtime = node.logs.get("t", 0)
    assert runtime is not None
    segments = runtime.replica.log.segments
    assert len(segments) == 3
    for segment in segments[:2]:
        segment.release()
    disk.is_cold = True


def cold_broker(disk: SlowDisk):  # type: ignore[no-untyped-def]
    return broker(2, files=disk, segment_bytes=str(PER_SEGMENT * len(BATCH)))


async def test_a_reader_at_the_end_does_not_wait_for_the_disk_of_another() -> None:
    disk = SlowDisk()
    async with cold_broker(disk) as node:
        await written(node, disk)
        old = send(node, [(0, 0)], bytes_min=1)
        await asyncio.sleep(0.05)
        assert old.answer is None, "the disk has not answered"
        assert send(node, [(0, 2 * PER_SEGMENT)], bytes_min=1).found() == [(0, ErrorCode.NONE, len(BATCH))]
        await node.written([1])
        assert send(node, [(1, 0)], bytes_min=1).found() == [(1, ErrorCode.NONE, len(BATCH))]
        disk.answers.set()
        await eventually(lambda: old.answer is not None)
        assert old.found() == [(0, ErrorCode.NONE, PER_SEGMENT * len(BATCH))]
        assert disk.loaded == [f"{0:020d}{suffix}" for suffix in (".index", ".timeindex", ".log")]
        assert node.waiting_fetches == {}


async def test_what_the_page_cache_does_not_keep_is_read_all_the_same() -> None:
    disk = SlowDisk()
    disk.keeps = False
    disk.answers.set()
    async with cold_broker(disk) as node:
        await written(node, disk)
        old = send(node, [(0, 1), (1, 0)], bytes_min=1)
        await eventually(lambda: old.answer is not None)
        assert [each[2] for each in old.found()] == [(PER_SEGMENT - 1) * len(BATCH), 0]
        assert disk.loaded.count(f"{0:020d}.log") == fetch.LOADS_MAX


async def test_the_next_fetch_of_a_connection_waits_and_who_goes_away_is_forgotten() -> None:
    disk = SlowDisk()
    async with cold_broker(disk) as node:
        await written(node, disk)
        owner = Owner()
        first = send(node, [(0, 0)], bytes_min=1, slot=Slot(owner))
        second = send(node, [(0, 2 * PER_SEGMENT)], bytes_min=1, slot=Slot(owner))
        gone = send(node, [(0, PER_SEGMENT)], bytes_min=1)
        assert (first.answer, second.answer) == (None, None)
        gone.close()
        disk.answers.set()
        await eventually(lambda: second.answer is not None)
        assert first.answer is not None
        await eventually(lambda: node.waiting_fetches == {})
        assert gone.answer is None


async def test_a_disk_that_fails_is_told_to_its_reader() -> None:
    class Failing(SlowDisk):
        def load(self, path: Path, position: int, length: int) -> None:
            self.failing_reads = 100
            raise OSError("on purpose")

    disk = Failing()
    async with cold_broker(disk) as node:
        await written(node, disk)
        old = send(node, [(0, 0)], bytes_min=1)
        await eventually(lambda: old.answer is not None)
        assert old.found() == [(0, ErrorCode.KAFKA_STORAGE_ERROR, 0)]
        disk.failing_reads = 0


def uncached(path: Path) -> bool:
    """Whether this file system can tell that a file is not in the page cache."""
    files = OsFileSystem()
    path.write_bytes(bytes(1 << 20))
    files.sync_directory(path.parent)
    file = files.open(path)
    file.sync()
    files.drop_cached(path)
    found = not file.is_cached(0, 1 << 20)
    file.close()
    return found


def test_the_page_cache_is_asked_and_filled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    if not uncached(path):
        pytest.skip("this file system does not tell what is cached")
    files = OsFileSystem()
    files.load(path, 0, 1 << 40)
    file = files.open(path)
    assert file.is_cached(0, 1 << 20)
    files.drop_cached(path)
    assert not file.is_cached((1 << 20) - 10, 10)
    file.close()
    files.load(tmp_path / "absent", 0, 1)


async def test_a_stock_client_reads_all_of_a_log_that_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not uncached(tmp_path / "file"):
        pytest.skip("this file system does not tell what is cached")
    loaded: list[str] = []
    load = OsFileSystem.load

    def noted(self: OsFileSystem, path: Path, position: int, length: int) -> None:
        loaded.append(path.suffix)
        load(self, path, position, length)

    monkeypatch.setattr(OsFileSystem, "load", noted)
    node = Node(BrokerConfig(data_dir=tmp_path / "data", port=0))
    await node.start()
    try:
        await node.ensure_topic(
            CreateTopic(name="t", topic_id="1" * 32, partitions=1, overrides={"segment.bytes": str(1 << 20)})
        )
        await asyncio.to_thread(produce, f"127.0.0.1:{node.port}", 4_000)
        runtime = node.logs.get("t", 0)
        assert runtime is not None
        for segment in runtime.replica.log.segments[:-1]:
            segment.release()
        for path in (tmp_path / "data" / "t-0").iterdir():
            OsFileSystem().drop_cached(path)
        got = await asyncio.to_thread(consume, f"127.0.0.1:{node.port}", 4_000)
        assert got == [b"%d" % at for at in range(4_000)]
        assert {".index", ".timeindex", ".log"} <= set(loaded)
    finally:
        await node.stop()


def produce(address: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for at in range(count):
        producer.produce("t", bytes(1_000), key=b"%d" % at)
    assert producer.flush(60) == 0


def consume(address: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    got: list[bytes] = []
    while len(got) < count and (found := consumer.consume(count, 30)):
        got += [message.key() for message in found]
    consumer.close()
    return got
