"""A folder's records are those of one topic: after a power cut too, nobody is shown them as another one's."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from node_client import running
from node_cluster import eventually

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster.image import EVENTS_TOPIC
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import build_batch, iterate_records
from log_broker.server.node import Node
from log_broker.server.partitions.folders import UnidentifiedPartitionError
from log_broker.server.partitions.internal_log import stored_records
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.checkpoints import PARTITION_METADATA_FILE, encode_topic_id
from log_broker.storage.memory_files import MemoryFileSystem, ProcessKilled

DATA = Path("data")
FOLDER = DATA / "orders-0"
METADATA = FOLDER / PARTITION_METADATA_FILE
OLD, NEW = UUID(int=0xA), UUID(int=0xB)
CONFIG = TopicConfig.from_overrides({"segment.bytes": "300"})
SYNCS_MAX = 40


class InlinePool:
    """Does the work at once, in the order in which it comes; a process that is killed in it says nothing more."""

    is_killed = False

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        try:
            work()
        except ProcessKilled:
            self.is_killed = True
        except OSError as error:
            done(error)
        else:
            done(None)

    def close(self) -> None:
        """There are no threads."""


Open = Callable[[MemoryFileSystem], LogManager]


@pytest.fixture
async def open_logs() -> AsyncIterator[Open]:
    made: list[tuple[LogManager, InlinePool]] = []

    def make(files: MemoryFileSystem) -> LogManager:
        pool = InlinePool()
        logs = LogManager(
            DATA,
            asyncio.get_running_loop(),
            validator=None,
            clock_ms=lambda: 10_000,
            files=files,
            pool=pool,
        )
        logs.open_all(lambda topic: CONFIG)
        made.append((logs, pool))
        return logs

    yield make
    for logs, pool in made:
        if not pool.is_killed:
            await logs.close()


async def append(runtime: PartitionRuntime, value: bytes) -> AppendResult:
    """Append a record; with a pool that does all at once, whoever has no answer by then gets none."""
    answers: list[AppendResult] = []
    runtime.append(bytes(build_batch([(1, b"k", value, ())])), acks=-1, done=answers.append)
    await asyncio.sleep(0)
    return answers[0] if answers else AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR)


def values(runtime: PartitionRuntime) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = runtime.log_start_offset
    while offset < runtime.high_watermark:
        records = list(iterate_records(runtime.read(offset, 1).chunks[0]))
        found += [record.value for record in records]
        offset = records[-1].offset + 1
    return found


async def filled(logs: LogManager, topic_id: UUID, count: int = 3) -> int:
    """Make the partition and append to it until the process is killed; return how many were acknowledged."""
    runtime = logs.create("orders", 0, topic_id, CONFIG)
    for number in range(count):
        if (await append(runtime, b"%d" % number)).error is not ErrorCode.NONE:
            return number
    return count


def cut(files: MemoryFileSystem, how: str, seed: int) -> MemoryFileSystem:
    rng = random.Random(seed)
    match how:
        case "nothing survives":
            return files.crash()
        case "names survive":
            return files.crash(journal=lambda directory: True)
        case "all survives":
            return files.crash(lambda unsynced: unsynced, lambda directory: True)
        case _:
            return files.crash(
                lambda unsynced: unsynced[: rng.randrange(len(unsynced) + 1)], lambda directory: rng.random() < 0.5
            )


@pytest.mark.parametrize("how", ["nothing survives", "names survive", "all survives", "anything survives"])
async def test_power_is_cut_at_every_sync_of_a_topics_first_records(open_logs: Open, how: str) -> None:
    """The topic is deleted and made again while the broker is down, or is there still."""
    for syncs in range(SYNCS_MAX):
        files = MemoryFileSystem()
        logs = open_logs(files)
        files.syncs_left = syncs
        acknowledged = await filled(logs, OLD)
        was_whole = files.syncs_left > 0
        files.syncs_left = None

        renewed = open_logs(cut(files, how, syncs)).create("orders", 0, NEW, CONFIG)
        assert (renewed.topic_id, values(renewed)) == (NEW, [])
        await append(renewed, b"new")
        assert values(renewed) == [b"new"]

        again = open_logs(cut(files, how, syncs)).create("orders", 0, OLD, CONFIG)
        found = values(again)
        assert found == [b"%d" % number for number in range(len(found))]
        assert len(found) >= acknowledged

        # Killed first, and started: what that start takes for written is there after a power cut.
        killed = open_logs(files).create("orders", 0, OLD, CONFIG)
        counted = killed.replica.state.synced_end
        later = open_logs(cut(files, how, syncs)).create("orders", 0, OLD, CONFIG)
        assert later.log_end_offset >= counted
        if was_whole:
            return
    raise AssertionError("it takes more syncs than that")


async def test_a_topic_without_records_needs_no_sync(open_logs: Open) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    files.syncs_left = 0
    for partition in range(100):
        logs.create("orders", partition, OLD, CONFIG)
    files.syncs_left = None


@pytest.mark.parametrize("content", [b"", b"version: 0\n", b"version: 0\ntopic_id: !\n", b"\0" * 50, None])
async def test_records_of_a_topic_unknown_are_shown_to_nobody(
    open_logs: Open, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    assert await filled(logs, OLD) == 3
    runtime = logs.get("orders", 0)
    assert runtime is not None
    runtime.keeping.delete_records(1)
    await logs.checkpoints.keep_log_starts()
    await logs.close()
    if content is None:
        files.remove(METADATA)
    else:
        files.replace(METADATA, content)

    logs = open_logs(files)
    for topic_id in (OLD, NEW):
        with pytest.raises(UnidentifiedPartitionError) as refused:
            logs.create("orders", 0, topic_id, CONFIG)
        said = str(refused.value)
        assert str(METADATA) in said
        assert all(line in said for line in encode_topic_id(topic_id).decode().splitlines()), "how to repair it"
    assert logs.get("orders", 0) is None
    logs.checkpoint()

    # The operator writes what the message says, and nothing is lost or comes back.
    files.replace(METADATA, encode_topic_id(OLD))
    assert values(logs.create("orders", 0, OLD, CONFIG)) == [b"1", b"2"]
    assert not logs.unidentified


async def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(open_logs: Open) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    await filled(logs, OLD)
    await logs.close()
    real = files.read

    def read(path: Path) -> bytes | None:
        if path == METADATA:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    files.read = read  # type: ignore[method-assign]
    logs = open_logs(files)
    with pytest.raises(UnidentifiedPartitionError):
        logs.create("orders", 0, OLD, CONFIG)


@pytest.mark.parametrize("found", ["another topic's", "deleted", "moved away"])
async def test_how_an_unidentified_folder_makes_room(open_logs: Open, found: str) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    await filled(logs, OLD)
    await logs.close()
    files.replace(METADATA, b"")
    logs = open_logs(files)
    match found:
        case "another topic's":
            files.replace(METADATA, encode_topic_id(OLD))
        case "deleted":
            logs.delete("orders", 0)
        case "moved away":
            files.rename(FOLDER, Path("elsewhere"))
    runtime = logs.create("orders", 0, NEW, CONFIG)
    assert values(runtime) == []
    await append(runtime, b"new")
    assert values(runtime) == [b"new"]
    kept = [name for name in files.names(DATA) if name.endswith("-stray")]
    assert len(kept) == (found != "moved away"), "set aside, not removed"


async def test_a_write_for_a_deleted_topic_does_not_name_the_new_ones_records(tmp_path: Path) -> None:
    """Both have the same folder's name, and the write of the first comes to its files late."""
    waiting: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []

    class LatePool(InlinePool):
        def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
            waiting.append((work, done))

    def next_work() -> None:
        InlinePool().submit(*waiting.pop(0))

    files = MemoryFileSystem()
    arguments: dict[str, Any] = {"validator": None, "clock_ms": lambda: 10_000, "files": files, "pool": LatePool()}
    logs = LogManager(DATA, asyncio.get_running_loop(), **arguments)
    logs.open_all(lambda topic: CONFIG)
    results: list[AppendResult] = []
    for topic_id in (OLD, NEW):
        logs.delete("orders", 0)
        runtime = logs.create("orders", 0, topic_id, CONFIG)
        runtime.append(bytes(build_batch([(1, b"k", topic_id.bytes, ())])), acks=-1, done=results.append)
        await asyncio.sleep(0)
    assert len(waiting) == 2
    waiting.reverse()
    next_work()
    next_work()
    assert files.read(METADATA) == encode_topic_id(NEW)
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    while waiting:
        next_work()


def diary(node: Node) -> list[str]:
    runtime = node.logs.led(EVENTS_TOPIC, 0)
    return [] if runtime is None else [json.loads(record.value or b"")["text"] for record in stored_records(runtime)]


async def test_a_node_says_what_it_does_not_know_and_goes_on_once_it_does(tmp_path: Path) -> None:
    records = bytes(build_batch([(-1, b"k", b"v", ())]))
    async with running(tmp_path / "n") as (node, client):
        await client.create("orders", partitions=2)
        for partition in range(2):
            answer = await client.produce("orders", records, partition=partition)
            assert answer.error_code == ErrorCode.NONE
    metadata = tmp_path / "n" / "orders-0" / PARTITION_METADATA_FILE
    content = metadata.read_bytes()
    metadata.write_bytes(b"")
    async with running(tmp_path / "n") as (node, client):
        answer = await client.produce("orders", records, partition=0)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        answer = await client.produce("orders", records, partition=1)
        assert answer.error_code == ErrorCode.NONE
        await eventually(lambda: any(f"orders-0 is offline on node 0: [Errno 5] {metadata}" in t for t in diary(node)))
        metadata.write_bytes(content)
        node.replicas._apply_again()
        await eventually(lambda: node.logs.led("orders", 0) is not None)
        answer = await client.produce("orders", records, partition=0)
        assert answer.base_offset == 1
