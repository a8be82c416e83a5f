"""Partitions under asyncio: threads that sync, readers that wait, restarts on real files."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.partition.replication import Leadership
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import build_batch, iterate_records
from log_broker.records.batch import LOG_APPEND_TIME, read_header
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.sync_pool import SyncPool
from log_broker.storage.data_directory import DataDirectoryError
from log_broker.storage.files import File, OsFile, OsFileSystem

TOPIC_ID = UUID(int=77)
NOW_MS = 1_700_000_000_000


def config(**overrides: str) -> TopicConfig:
    return TopicConfig.from_overrides({name.replace("_", "."): value for name, value in overrides.items()}, None)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


class Disk(OsFileSystem):
    """Real files whose syncs can be held back and whose writes can fail."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.syncs = 0
        self.failure: OSError | None = None

    def open(self, path: Path) -> File:
        return WatchedFile(path, self)


class WatchedFile(OsFile):
    """A file of a `Disk`."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path)
        self.disk = disk

    def write_at(self, position, buffers) -> None:
        if self.disk.failure is not None:
            raise self.disk.failure
        super().write_at(position, buffers)

    def sync(self) -> None:
        self.disk.go_on.wait()
        self.disk.syncs += 1
        super().sync()


Manager = Callable[..., LogManager]


@pytest.fixture
async def manager(tmp_path) -> AsyncIterator[Manager]:
    """Make log managers on one data directory; what is still open at the end is closed."""
    made: list[LogManager] = []

    def make(*, files: Disk | None = None, clock: Callable[[], int] | None = None) -> LogManager:
        logs = LogManager(
            tmp_path / "data",
            asyncio.get_running_loop(),
            validator=None,
            clock_ms=clock or Clock(),
            files=files,
        )
        logs.open_all(lambda topic: config())
        made.append(logs)
        return logs

    yield make
    for logs in made:
        await logs.close()


def batch(*values: bytes, **fields) -> bytes:
    return bytes(build_batch([(NOW_MS, b"k", value, ()) for value in values], **fields))


async def append(runtime: PartitionRuntime, records: bytes, acks: int = -1) -> AppendResult:
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    runtime.append(records, acks=acks, done=answer.set_result)
    return await answer


def values(runtime: PartitionRuntime) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = runtime.log_start_offset
    while offset < runtime.high_watermark:
        result = runtime.read(offset, 1)
        (chunk,) = result.chunks
        records = list(iterate_records(chunk))
        found += [record.value for record in records]
        offset = records[-1].offset + 1
    return found


@pytest.mark.parametrize("durability", ["memory", "fsync-leader", "fsync-quorum"])
async def test_append_and_read(manager, durability) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config(fluvial_durability=durability))
    assert (await append(runtime, batch(b"a", b"b"))).base_offset == 0
    assert (await append(runtime, batch(b"c"), acks=1)).base_offset == 2
    assert runtime.high_watermark == runtime.last_stable_offset == runtime.log_end_offset == 3
    assert values(runtime) == [b"a", b"b", b"c"]
    assert runtime.keeping.at_risk().records == (3 if durability == "memory" else 0)


async def test_no_answer_and_no_reader_before_the_sync(manager) -> None:
    disk = Disk()
    runtime = manager(files=disk).create("t", 0, TOPIC_ID, config())
    disk.go_on.clear()
    answers: list[AppendResult] = []
    try:
        for value in (b"a", b"b", b"c"):
            runtime.append(batch(value), acks=-1, done=answers.append)
            await asyncio.sleep(0.01)
        assert answers == []
        assert runtime.high_watermark == 0
        assert runtime.read(0, 1000).size == 0
    finally:
        disk.go_on.set()
    assert (await append(runtime, batch(b"d"))).base_offset == 3
    assert [result.base_offset for result in answers] == [0, 1, 2]
    assert disk.syncs == 2, "what arrived during the first sync shared the second"


async def test_partitions_do_not_wait_for_each_other(manager) -> None:
    disk = Disk()
    logs = manager(files=disk)
    slow = logs.create("slow", 0, uuid4(), config())
    quick = logs.create("quick", 0, uuid4(), config(fluvial_durability="memory"))
    disk.go_on.clear()
    try:
        waiting = asyncio.ensure_future(append(slow, batch(b"a")))
        assert (await append(quick, batch(b"b"))).error is ErrorCode.NONE
        assert not waiting.done()
    finally:
        disk.go_on.set()
    assert (await waiting).error is ErrorCode.NONE


@pytest.mark.parametrize("durability", ["memory", "fsync-leader"])
async def test_a_full_disk_refuses_and_keeps_the_rest_serving(manager, durability) -> None:
    disk = Disk()
    logs = manager(files=disk)
    runtime = logs.create("t", 0, uuid4(), config(fluvial_durability=durability))
    numbered = {"producer_id": 3, "producer_epoch": 0}
    await append(runtime, batch(b"a", base_sequence=0, **numbered))
    disk.failure = OSError(errno.ENOSPC, "No space left on device")
    results = await asyncio.gather(
        append(runtime, batch(b"b", base_sequence=1, **numbered)),
        append(runtime, batch(b"c", base_sequence=2, **numbered)),
    )
    assert [result.error for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert "No space left" in (results[0].message or "")
    assert values(runtime) == [b"a"]
    disk.failure = None
    assert (await append(runtime, batch(b"b", base_sequence=1, **numbered))).base_offset == 1
    assert values(runtime) == [b"a", b"b"]


async def test_a_reader_is_woken_when_its_offset_is_there(manager) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config())
    woken: list[int] = []
    runtime.on_readable(0, lambda: woken.append(0))
    runtime.on_readable(2, lambda: woken.append(2))
    cancel = runtime.on_readable(0, lambda: woken.append(-1))
    cancel()
    await append(runtime, batch(b"a", b"b"))
    await asyncio.sleep(0)
    assert woken == [0]
    await append(runtime, batch(b"c"))
    await asyncio.sleep(0)
    assert woken == [0, 2]


async def test_reads_outside_the_log(manager) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config())
    await append(runtime, batch(b"a", b"b"))
    assert runtime.read(2, 100).error is ErrorCode.NONE
    assert runtime.read(3, 100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert runtime.read(-1, 100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert runtime.keeping.delete_records(1) == 1
    assert runtime.read(0, 100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert runtime.read(1, 100).size > 0
    with pytest.raises(BrokerError):
        runtime.keeping.delete_records(3)
    assert runtime.keeping.delete_records(-1) == 2


async def test_leader_epochs_are_compared(manager) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config())
    runtime.role.become_leader(Leadership(leader_epoch=4, partition_epoch=1, replicas=(0,), isr=(0,)))
    assert runtime.check_leader_epoch(-1) is ErrorCode.NONE
    assert runtime.check_leader_epoch(4) is ErrorCode.NONE
    assert runtime.check_leader_epoch(3) is ErrorCode.FENCED_LEADER_EPOCH
    assert runtime.check_leader_epoch(5) is ErrorCode.UNKNOWN_LEADER_EPOCH
    await append(runtime, batch(b"a"))
    assert runtime.epoch_end_offset(4) == (4, 1)


async def test_internal_records_are_appended_as_one_batch(manager) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config(cleanup_policy="compact"))
    assert await runtime.own_appends.records([(b"a", b"1"), (b"b", None)]) == 0
    assert await runtime.own_appends.records([(b"c", b"3")]) == 2
    with pytest.raises(BrokerError, match="without a key") as refusal:
        await runtime.own_appends.records([(None, b"4")])
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    assert await runtime.times.offset_for_timestamp(0) == (0, NOW_MS)
    assert await runtime.times.offset_of_max_timestamp() == (0, NOW_MS)
    assert await runtime.times.offset_for_timestamp(NOW_MS + 1) is None


@pytest.mark.parametrize(
    ("settings", "attributes", "time"),
    [
        ({}, 0, NOW_MS - 5),
        ({"compression_type": "gzip"}, 1, NOW_MS - 5),
        ({"message_timestamp_type": "LogAppendTime"}, LOG_APPEND_TIME, NOW_MS),
    ],
)
async def test_internal_records_are_stored_as_the_topic_asks(manager, settings, attributes, time) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config(cleanup_policy="compact", **settings))
    await runtime.own_appends.records([(b"a", b"1")], NOW_MS - 5)
    header = read_header(runtime.stored_batch(0))
    assert (header.attributes, header.max_timestamp) == (attributes, time)


async def test_internal_records_are_refused_as_any_others(manager) -> None:
    runtime = manager().create("t", 0, TOPIC_ID, config(cleanup_policy="compact", max_message_bytes="100"))
    with pytest.raises(BrokerError, match="the topic takes 100") as refusal:
        await runtime.own_appends.records([(b"a", bytes(100))])
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
    runtime.role.become_follower(4, 1)
    with pytest.raises(BrokerError) as refusal:
        await runtime.own_appends.records([(b"a", b"1")])
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_finds_everything(manager, tmp_path, clean) -> None:
    logs = manager()
    runtime = logs.create("a-topic.x", 3, TOPIC_ID, config(segment_bytes="300"))
    for at in range(20):
        await append(runtime, batch(b"%d" % at, producer_id=9, producer_epoch=1, base_sequence=at))
    runtime.keeping.delete_records(2)
    logs.checkpoint()
    await logs.close()
    marker = tmp_path / "data" / ".kafka_cleanshutdown"
    assert marker.exists()
    if not clean:
        marker.unlink()

    again = manager()

    assert not marker.exists(), "it must not speak for the next crash"
    found = again.get("a-topic.x", 3)
    assert found is not None
    assert found.topic_id == TOPIC_ID
    assert (found.log_start_offset, found.high_watermark) == (2, 20)
    assert values(found) == [b"%d" % at for at in range(2, 20)]
    result = await append(found, batch(b"19", producer_id=9, producer_epoch=1, base_sequence=19))
    assert (result.error, result.base_offset) == (ErrorCode.NONE, 19)
    assert found.high_watermark == 20


async def test_creating_again_changes_only_the_config(manager) -> None:
    logs = manager()
    runtime = logs.create("t", 0, TOPIC_ID, config())
    await append(runtime, batch(b"a"))
    assert logs.create("t", 0, TOPIC_ID, config(max_message_bytes="20")) is runtime
    assert (await append(runtime, batch(b"b"))).error is ErrorCode.MESSAGE_TOO_LARGE
    assert list(logs.partitions()) == [runtime]


async def test_a_topic_made_again_under_its_name_starts_empty(manager, tmp_path) -> None:
    logs = manager()
    old = logs.create("t", 0, TOPIC_ID, config())
    await append(old, batch(b"a"))
    new = logs.create("t", 0, uuid4(), config())
    assert new is not old
    assert new.high_watermark == 0
    assert (await append(old, batch(b"b"))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await append(new, batch(b"c"))
    assert values(new) == [b"c"]
    await logs.close()
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == ["t-0"]


async def test_what_is_gathered_when_its_topic_is_deleted_goes_nowhere(manager) -> None:
    logs = manager()
    old = logs.create("t", 0, TOPIC_ID, config())
    waiting = asyncio.ensure_future(append(old, batch(b"a")))
    await asyncio.sleep(0)
    new = logs.create("t", 0, uuid4(), config())
    assert (await waiting).error is ErrorCode.KAFKA_STORAGE_ERROR
    await append(new, batch(b"b"))
    assert values(new) == [b"b"]


async def test_deleting_wakes_readers_and_waits_for_the_write_under_way(manager, tmp_path) -> None:
    disk = Disk()
    logs = manager(files=disk)
    runtime = logs.create("t", 0, TOPIC_ID, config())
    await append(runtime, batch(b"a"))
    woken: list[bool] = []
    runtime.on_readable(1, lambda: woken.append(True))
    disk.go_on.clear()
    waiting = asyncio.ensure_future(append(runtime, batch(b"b")))
    await asyncio.sleep(0.01)
    logs.delete("t", 0)
    assert logs.get("t", 0) is None
    await asyncio.sleep(0.01)
    assert not waiting.done()
    disk.go_on.set()
    await waiting
    await logs.close()
    assert woken == [True]
    assert [path for path in (tmp_path / "data").iterdir() if path.is_dir()] == []


async def test_retention_moves_the_log_start(manager) -> None:
    logs = manager()
    runtime = logs.create("t", 0, TOPIC_ID, config(segment_bytes="300", retention_ms="1000"))
    for at in range(20):
        await append(runtime, batch(b"%d" % at))
    assert logs.enforce_retention(NOW_MS + 1000) == 0
    assert logs.enforce_retention(NOW_MS + 1001) > 2
    assert runtime.log_start_offset == runtime.high_watermark == 20
    assert (await append(runtime, batch(b"next"))).base_offset == 20


async def test_a_compacted_topic_is_not_cut_by_time(manager) -> None:
    logs = manager()
    runtime = logs.create("t", 0, TOPIC_ID, config(segment_bytes="300", retention_ms="1000", cleanup_policy="compact"))
    for at in range(20):
        await append(runtime, batch(b"%d" % at))
    assert logs.enforce_retention(NOW_MS + 10**9) == 0


async def test_flush_ms_syncs_without_a_further_append(manager) -> None:
    disk = Disk()
    runtime = manager(files=disk).create("t", 0, TOPIC_ID, config(fluvial_durability="memory", flush_ms="1"))
    clock = runtime.replica.clock_ms
    assert isinstance(clock, Clock)
    await append(runtime, batch(b"a"))
    clock.ms += 10
    while runtime.keeping.at_risk().records:  # noqa: ASYNC110 - nothing tells of a sync that nobody asked for
        await asyncio.sleep(0.001)
    assert disk.syncs == 1


async def test_one_broker_per_data_directory(manager) -> None:
    manager()
    with pytest.raises(DataDirectoryError, match="another broker"):
        manager()


async def test_what_is_not_a_partition_is_left_alone(manager, tmp_path) -> None:
    stray = tmp_path / "data" / "notes"
    stray.mkdir(parents=True)
    (tmp_path / "data" / "t-0.abc-delete").mkdir()
    assert list(manager().partitions()) == []
    assert stray.exists()
    assert not (tmp_path / "data" / "t-0.abc-delete").exists()


async def test_the_pool_reports_what_went_wrong() -> None:
    pool = SyncPool(asyncio.get_running_loop(), threads=2)
    outcomes: asyncio.Queue[BaseException | None] = asyncio.Queue()

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    pool.submit(fail, outcomes.put_nowait)
    assert isinstance(await outcomes.get(), OSError)
    for _ in range(20):
        pool.submit(lambda: None, outcomes.put_nowait)
    assert [await outcomes.get() for _ in range(20)] == [None] * 20
    pool.close()
