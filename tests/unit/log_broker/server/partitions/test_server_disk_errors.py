"""A disk that is full or fails: the request says so, the rest goes on, and nothing is believed that was not synced."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from node_cluster import eventually

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import build_batch, iterate_records
from log_broker.server.handlers.admin import describe_log_dirs
from log_broker.server.node import Node
from log_broker.server.partitions import disk_watch
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.checkpoints import SYNC_FAILED_FILE
from log_broker.storage.memory_files import MemoryFileSystem

DATA = Path("data")
Open = Callable[[MemoryFileSystem], LogManager]


def config(**settings: str) -> TopicConfig:
    return TopicConfig.from_overrides({name.replace("_", "."): value for name, value in settings.items()})


@pytest.fixture
async def open_logs() -> AsyncIterator[Open]:
    """Opens logs on simulated disks, and closes those whose disk still stands at the end."""
    made: list[LogManager] = []

    def make(files: MemoryFileSystem) -> LogManager:
        logs = LogManager(DATA, asyncio.get_running_loop(), validator=None, clock_ms=lambda: 10_000, files=files)
        logs.open_all(lambda topic: config(fluvial_durability="memory"))
        made.append(logs)
        return logs

    yield make
    for logs in made:
        await logs.close()


async def append(runtime: PartitionRuntime, *values: bytes, **fields: int) -> AppendResult:
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    batch = bytes(build_batch([(1, b"k", value, ()) for value in values], **fields))
    runtime.append(batch, acks=-1, done=answer.set_result)
    return await answer


def values(runtime: PartitionRuntime) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = runtime.log_start_offset
    while offset < runtime.high_watermark:
        records = list(iterate_records(runtime.read(offset, 1).chunks[0]))
        found += [record.value for record in records]
        offset = records[-1].offset + 1
    return found


async def test_after_a_failed_sync_a_synced_log_goes_on_without_what_failed(open_logs: Open) -> None:
    files = MemoryFileSystem()
    runtime = open_logs(files).create("t", 0, uuid4(), config())
    assert (await append(runtime, b"a")).error is ErrorCode.NONE
    files.failing_syncs = 1
    assert (await append(runtime, b"lost")).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (await append(runtime, b"b")).base_offset == 1
    assert values(runtime) == [b"a", b"b"]
    assert runtime.replica.storage_errors == 1
    after = open_logs(files.crash()).get("t", 0)
    assert after is not None
    assert values(after) == [b"a", b"b"], "all that was acknowledged survives a power cut right after"


async def test_after_a_failed_sync_what_was_acknowledged_before_is_not_believed(open_logs: Open) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    risky = logs.create("risky", 0, uuid4(), config(fluvial_durability="memory"))
    other = logs.create("other", 0, uuid4(), config())
    assert (await append(risky, b"kept")).error is ErrorCode.NONE
    risky.config = config(flush_messages="1")
    assert (await append(risky, b"synced")).error is ErrorCode.NONE
    risky.config = config(fluvial_durability="memory")
    assert (await append(risky, b"at risk")).error is ErrorCode.NONE
    assert (risky.keeping.at_risk().first_offset, risky.keeping.at_risk().records) == (2, 1)
    risky.config = config(flush_messages="1")
    files.failing_syncs = 1
    logs.disk.stop()  # or the log is back as soon as a trial has gone well
    assert (await append(risky, b"refused")).error is ErrorCode.KAFKA_STORAGE_ERROR

    assert risky.offline_reason is not None
    refused = await append(risky, b"refused as well")
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert refused.message == risky.offline_reason
    assert (await append(other, b"elsewhere")).error is ErrorCode.NONE
    node = SimpleNamespace(logs=logs, static_config=SimpleNamespace(data_dir=Path.cwd()))
    answer = await describe_log_dirs.handle(node, None, SimpleNamespace(topics=None))  # type: ignore[arg-type]
    (found,) = answer["results"]
    assert found["error_code"] is ErrorCode.KAFKA_STORAGE_ERROR

    woken: list[bool] = []
    risky.on_readable(99, lambda: woken.append(True))
    # A follower looks again, too: what memory had given up may be on the disk still.
    asked_again: list[bool] = []
    risky.leading.on_appended(99, lambda: asked_again.append(True))
    assert logs.reopen_offline() == 1
    assert risky.offline_reason is None
    assert values(risky) == [b"kept", b"synced"], "the disk never had the third, though the system still shows it"
    assert (await append(risky, b"again")).base_offset == 2
    assert (woken, asked_again) == ([True], [True])
    after = open_logs(files.crash()).get("risky", 0)
    assert after is not None
    assert values(after) == [b"kept", b"synced", b"again"]


async def test_a_disk_that_takes_no_writes_is_told_from_a_write_that_failed(
    open_logs: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "AGAIN_SECONDS", 0.01)
    files = MemoryFileSystem()
    logs = open_logs(files)
    changed = asyncio.Event()
    logs.disk.on_changed = changed.set
    runtime = logs.create("t", 0, uuid4(), config())
    files.failing_syncs = 1
    assert (await append(runtime, b"unlucky")).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert logs.disk.is_doubtful
    await eventually(lambda: not logs.disk.is_doubtful)
    assert not changed.is_set(), "the next write went well"
    files.room_bytes = 0
    assert (await append(runtime, b"no room")).error is ErrorCode.KAFKA_STORAGE_ERROR
    await changed.wait()
    assert not logs.disk.takes_writes
    changed.clear()
    files.room_bytes = disk_watch.TRIAL_BYTES // 2
    await asyncio.sleep(0.05)
    assert not logs.disk.takes_writes, "room for a little is none for a batch"
    files.room_bytes = None
    await changed.wait()
    assert logs.disk.takes_writes
    assert disk_watch.TRIAL_FILE not in files.names(DATA)
    assert (await append(runtime, b"room")).error is ErrorCode.NONE


async def test_a_failed_sync_of_a_full_segment_takes_the_partition_offline(open_logs: Open) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    runtime = logs.create("t", 0, uuid4(), config(fluvial_durability="memory", segment_bytes="200"))
    for number in range(6):
        assert (await append(runtime, b"%060d" % number)).error is ErrorCode.NONE
    files.failing_syncs = 1
    logs.checkpoint()
    while runtime.offline_reason is None:  # noqa: ASYNC110 - nothing tells of a sync that nobody asked for
        await asyncio.sleep(0.001)
    logs.checkpoint()
    await asyncio.sleep(0.01)
    assert runtime.recovery_point == 0, "a second sync would have said that all is well"
    assert logs.reopen_offline() == 1
    assert values(runtime) == []
    assert (await append(runtime, b"x")).base_offset == 0


async def test_a_start_after_a_failed_sync_reads_the_disk(open_logs: Open) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    runtime = logs.create("t", 0, uuid4(), config(fluvial_durability="memory"))
    await append(runtime, b"at risk")
    runtime.config = config(flush_messages="1")
    files.failing_syncs = 1
    logs.disk.stop()  # or the log is back as soon as a trial has gone well
    await append(runtime, b"refused")
    assert runtime.offline_reason is not None
    await logs.close()
    assert files.read(DATA / "t-0" / SYNC_FAILED_FILE) is not None
    # The same system, which still shows the bytes that it could not write.
    after = open_logs(files).get("t", 0)
    assert after is not None
    assert values(after) == []
    assert files.read(DATA / "t-0" / SYNC_FAILED_FILE) is None


async def test_a_log_that_fails_is_read_again_at_once_and_then_not_again_for_a_while(open_logs: Open) -> None:
    files = MemoryFileSystem()
    logs = open_logs(files)
    runtime = logs.create("t", 0, uuid4(), config(fluvial_durability="memory"))
    for is_back in (True, False):
        runtime.config = config(fluvial_durability="memory")
        assert (await append(runtime, b"at risk")).error is ErrorCode.NONE
        runtime.config = config(flush_messages="1")
        files.failing_syncs = 1
        assert (await append(runtime, b"refused")).error is ErrorCode.KAFKA_STORAGE_ERROR
        await eventually(lambda: not logs.disk.is_doubtful)
        assert (runtime.offline_reason is None) is is_back
    assert logs.reopen_offline() == 1


async def test_a_read_error_is_told_and_passes(open_logs: Open) -> None:
    files = MemoryFileSystem()
    runtime = open_logs(files).create("t", 0, uuid4(), config())
    await append(runtime, b"a")
    files.failing_reads = 1
    assert runtime.read(0, 1000).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert runtime.replica.storage_errors == 1
    assert values(runtime) == [b"a"]


async def test_a_disk_that_is_full_for_a_while(open_logs: Open, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFileSystem()
    runtime = open_logs(files).create("t", 0, uuid4(), config(segment_bytes="300"))
    kept: list[bytes] = []
    sequence = 0
    # Wherever the room ends: in a batch, an index, a snapshot of the producers, the first byte of a segment.
    for room in range(0, 900, 60):
        files.room_bytes = room
        while True:
            value = b"%050d" % sequence
            result = await append(runtime, value, producer_id=1, producer_epoch=0, base_sequence=sequence)
            if result.error is not ErrorCode.NONE:
                assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
                break
            kept.append(value)
            sequence += 1
        files.room_bytes = None
        assert values(runtime) == kept
    assert runtime.offline_reason is None
    assert (
        len([line for line in caplog.messages if line.startswith("writing t-0 failed")])
        < runtime.replica.storage_errors
    )
    after = open_logs(files.crash()).get("t", 0)
    assert after is not None
    assert values(after) == kept


@pytest.fixture
def small_disk(tmp_path: Path) -> "AsyncIterator[Path]":
    """A file system of 4 MiB of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(ballast.parent).free < 4096


async def test_a_real_disk_that_is_full_and_has_room_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    node = Node(BrokerConfig(data_dir=small_disk / "data", port=0))
    await node.start()
    try:
        await node.ensure_topic(CreateTopic(name="t", topic_id=uuid4().hex, partitions=2))
        runtime = node.logs.get("t", 0)
        assert runtime is not None
        assert (await append(runtime, b"a")).error is ErrorCode.NONE
        fill(ballast)
        assert (await append(runtime, bytes(20_000))).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert values(runtime) == [b"a"]
        ballast.unlink()
        assert (await append(runtime, b"b")).base_offset == 1
        assert runtime.offline_reason is None
    finally:
        await node.stop()
