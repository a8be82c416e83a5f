"""What looks after logs beside requests: recovery at start, checkpoints, retention, files that are removed later."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import build_batch, iterate_records
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from log_broker.storage.files import File, OsFile, OsFileSystem

NOW_MS = 1_700_000_000_000


def config(**overrides: str) -> TopicConfig:
    return TopicConfig.from_overrides({name.replace("_", "."): value for name, value in overrides.items()}, None)


@dataclass
class Clock:
    """Time that a test moves."""

    ms: int = NOW_MS

    def __call__(self) -> int:
        return self.ms


@dataclass
class Recorder(OsFileSystem):
    """Real files, and a list of what was done to them: ("write", name) and ("sync", name)."""

    def __post_init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def open(self, path: Path) -> File:
        return RecordedFile(path, self.done)


class RecordedFile(OsFile):
    """A file of a `Recorder`."""

    def __init__(self, path: Path, done: list[tuple[str, str]]) -> None:
        super().__init__(path)
        self.name = path.name
        self.done = done

    def write_at(self, position: int, buffers: Any) -> None:
        self.done.append(("write", self.name))
        super().write_at(position, buffers)

    def sync(self) -> None:
        super().sync()
        self.done.append(("sync", self.name))


Open = Callable[..., Awaitable[LogManager]]


@pytest.fixture
async def open_logs(tmp_path: Path) -> AsyncIterator[Open]:
    """Open log managers on one data directory; the latest is closed at the end."""
    opened: list[LogManager] = []

    async def open_logs(
        *,
        clock: Clock | None = None,
        files: OsFileSystem | None = None,
        settings: dict[str, str] | None = None,
        topic: TopicConfig | None = None,
    ) -> LogManager:
        broker = BrokerConfig(data_dir=tmp_path / "data").with_settings(settings or {})
        logs = LogManager(
            tmp_path / "data",
            asyncio.get_running_loop(),
            validator=None,
            clock_ms=clock or Clock(),
            files=files or OsFileSystem(),
            settings=(lambda: broker) if settings is not None else None,
        )
        logs.open_all(lambda name: topic or config())
        opened.append(logs)
        return logs

    yield open_logs
    for logs in opened:
        await logs.close()


def batch(*values: bytes, **fields: Any) -> bytes:
    return bytes(build_batch([(NOW_MS, b"k", value, ()) for value in values], **fields))


async def append(runtime: PartitionRuntime, records: bytes, acks: int = -1) -> AppendResult:
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    runtime.append(records, acks=acks, done=answer.set_result)
    return await answer


async def fill(runtime: PartitionRuntime, count: int) -> None:
    for at in range(count):
        await append(runtime, batch(b"%d" % at))


def values(runtime: PartitionRuntime) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = runtime.log_start_offset
    while offset < runtime.high_watermark:
        (chunk,) = runtime.read(offset, 1).chunks
        records = list(iterate_records(chunk))
        found += [record.value for record in records]
        offset = records[-1].offset + 1
    return found


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.005)


def names(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


async def test_expired_files_stay_for_their_delay_and_then_go(open_logs: Open, tmp_path: Path) -> None:
    logs = await open_logs()
    runtime = logs.create("t", 0, uuid4(), config(segment_bytes="300", retention_ms="1000", file_delete_delay_ms="20"))
    await fill(runtime, 20)
    removed = logs.enforce_retention(NOW_MS + 1001)
    directory = tmp_path / "data" / "t-0"
    assert len(names(directory, ".log.deleted")) == removed > 2
    assert len(names(directory, ".log")) == 1
    await eventually(lambda: not names(directory, ".deleted"))
    assert runtime.log_start_offset == 20


async def test_files_whose_delay_a_stop_cut_short_go_at_the_next_start(open_logs: Open, tmp_path: Path) -> None:
    logs = await open_logs()
    runtime = logs.create("t", 0, uuid4(), config(segment_bytes="300", retention_ms="1000"))
    await fill(runtime, 20)
    logs.enforce_retention(NOW_MS + 1001)
    await logs.close()
    directory = tmp_path / "data" / "t-0"
    assert names(directory, ".deleted")
    await open_logs()
    assert not names(directory, ".deleted")


async def test_a_deleted_topics_files_go_after_their_delay(open_logs: Open, tmp_path: Path) -> None:
    logs = await open_logs()
    for name, delay in (("soon", "10"), ("late", "60000")):
        await fill(logs.create(name, 0, uuid4(), config(file_delete_delay_ms=delay)), 1)
        logs.delete(name, 0)
    data = tmp_path / "data"
    await eventually(lambda: len(names(data, "-delete")) == 1)
    assert names(data, "-delete")[0].startswith("late-0.")
    await logs.close()
    assert names(data, "-delete") == []


async def test_retention_looks_as_often_as_it_is_told(open_logs: Open) -> None:
    clock = Clock()
    settings = {"log.retention.check.interval.ms": "5", "producer.id.expiration.ms": "5000"}
    logs = await open_logs(clock=clock, settings=settings)
    runtime = logs.create("t", 0, uuid4(), config(retention_ms="10000"))
    await append(runtime, batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0))
    assert len(runtime.producers) == 1
    clock.ms += 5001
    await eventually(lambda: len(runtime.producers) == 0)
    assert values(runtime) == [b"a"]
    clock.ms += 5000
    await eventually(lambda: runtime.log_start_offset == 1)
    runtime.config = config(retention_ms="-1")
    await append(runtime, batch(b"b"))
    clock.ms += 10**9
    logs.enforce_retention(clock.ms)
    assert values(runtime) == [b"b"], "a change of retention.ms holds at once"


async def test_checkpoints_are_written_as_often_as_they_are_told(open_logs: Open, tmp_path: Path) -> None:
    logs = await open_logs(settings={"log.flush.offset.checkpoint.interval.ms": "5"})
    runtime = logs.create("t", 0, uuid4(), config())
    await fill(runtime, 3)
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    await eventually(lambda: path.exists() and "t 0 3" in path.read_text())


@pytest.mark.parametrize("threads", ["1", "3"])
async def test_logs_of_an_unclean_end_are_recovered_side_by_side(
    open_logs: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, threads: str
) -> None:
    logs = await open_logs()
    for at in range(6):
        await fill(logs.create(f"t{at}", at, uuid4(), config(segment_bytes="300")), 10 + at)
    await logs.close()
    (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).unlink()
    for path in (tmp_path / "data" / "t3-3").glob("*.log"):
        last = path
    with last.open("ab") as file:
        file.write(b"torn")

    with caplog.at_level(logging.INFO):
        again = await open_logs(settings={"num.recovery.threads.per.data.dir": threads})

    for at in range(6):
        runtime = again.get(f"t{at}", at)
        assert runtime is not None
        assert len(values(runtime)) == 10 + at
    assert "recovered 6 logs" in caplog.text
    assert "cut 4 bytes" in caplog.text


async def test_a_topic_made_again_is_not_taken_for_the_one_before_it_after_a_crash(open_logs: Open) -> None:
    logs = await open_logs()
    old = logs.create("t", 0, uuid4(), config())
    await fill(old, 10)
    old.keeping.delete_records(8)
    await logs.checkpoints.keep_log_starts()
    logs.delete("t", 0)
    new = logs.create("t", 0, uuid4(), config())
    await fill(new, 9)
    # No close in order, no checkpoint since: another process finds what is on the disk.
    found = (await open_logs()).get("t", 0)
    assert found is not None
    assert (found.log_start_offset, len(values(found))) == (0, 9)


async def test_deleted_records_stay_deleted_over_a_crash(open_logs: Open) -> None:
    logs = await open_logs()
    runtime = logs.create("t", 0, uuid4(), config())
    await fill(runtime, 10)
    runtime.keeping.delete_records(6)
    await logs.checkpoints.keep_log_starts()
    found = (await open_logs()).get("t", 0)
    assert found is not None
    assert values(found) == [b"6", b"7", b"8", b"9"]


# What is synced, and when.


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize(
    ("overrides", "syncs"),
    [
        ({"fluvial_durability": "memory"}, []),
        ({"fluvial_durability": "memory", "flush_messages": "2"}, [2, 4]),
        ({"fluvial_durability": "memory", "flush_messages": "1"}, [1, 2, 3, 4]),
        ({"fluvial_durability": "fsync-leader"}, [1, 2, 3, 4]),
        ({"fluvial_durability": "fsync-quorum"}, [1, 2, 3, 4]),
        ({"fluvial_durability": "fsync-quorum", "flush_messages": "3"}, [1, 2, 3, 4]),
    ],
)
async def test_what_each_level_syncs(open_logs: Open, overrides: dict[str, str], syncs: list[int], acks: int) -> None:
    """`syncs` names after how many writes the file was synced; the answer to acks 1 and all stands behind its sync."""
    disk = Recorder()
    logs = await open_logs(files=disk)
    runtime = logs.create("t", 0, uuid4(), config(**overrides))
    disk.done.clear()
    for at in range(4):
        result = await append(runtime, batch(b"%d" % at), acks=acks)
        assert result.error is ErrorCode.NONE
        if acks and at + 1 in syncs:
            assert disk.done[-1][0] == "sync", "no answer before the sync that it promises"
        await eventually(lambda written=at + 1: runtime.log_end_offset == written)  # with acks=0 it comes later
    assert runtime.keeping.at_risk().records == (0 if syncs and syncs[-1] == 4 else 4)
    order = [kind for kind, name in disk.done if name.endswith(".log")]
    expected: list[str] = []
    for at in range(1, 5):
        expected += ["write", "sync"] if at in syncs else ["write"]
    assert order == expected


async def test_a_topic_whose_level_rises_is_synced_without_a_further_append(open_logs: Open) -> None:
    disk = Recorder()
    logs = await open_logs(files=disk)
    runtime = logs.create("t", 0, uuid4(), config(fluvial_durability="memory"))
    await fill(runtime, 3)
    assert runtime.keeping.at_risk().records == 3
    assert ("sync", f"{0:020d}.log") not in disk.done
    runtime.config = config(fluvial_durability="fsync-quorum")
    await eventually(lambda: runtime.keeping.at_risk().records == 0)
    assert disk.done[-1] == ("sync", f"{0:020d}.log")
    runtime.config = config(fluvial_durability="memory")
    disk.done.clear()
    await fill(runtime, 2)
    assert [kind for kind, _ in disk.done] == ["write", "write"]


async def test_full_segments_reach_the_disk_before_the_recovery_point_passes_them(open_logs: Open) -> None:
    disk = Recorder()
    logs = await open_logs(files=disk)
    runtime = logs.create("t", 0, uuid4(), config(fluvial_durability="memory", segment_bytes="300"))
    await fill(runtime, 20)
    assert runtime.recovery_point == 0
    logs.checkpoint()
    await eventually(lambda: runtime.recovery_point > 0)
    synced = {name for kind, name in disk.done if kind == "sync"}
    full = {name for kind, name in disk.done if kind == "write"} - {f"{runtime.recovery_point:020d}.log"}
    assert full == synced


async def test_retention_that_a_disk_breaks_off_goes_on_with_the_next_round(open_logs: Open, tmp_path: Path) -> None:
    class Stubborn(OsFileSystem):
        """Renames a few files and then fails."""

        left = 5

        def rename(self, path: Path, to: Path) -> None:
            if self.left == 0:
                raise OSError(errno.EIO, "Input/output error")
            self.left -= 1
            super().rename(path, to)

    disk = Stubborn()
    logs = await open_logs(files=disk)
    runtime = logs.create("t", 0, uuid4(), config(segment_bytes="300", retention_ms="1000"))
    await fill(runtime, 20)
    assert logs.enforce_retention(NOW_MS + 1001) == 0
    start = runtime.log_start_offset
    assert 0 < start < 20
    assert values(runtime) == [b"%d" % at for at in range(start, 20)]
    disk.left = 1000
    assert logs.enforce_retention(NOW_MS + 1001) > 0
    assert runtime.log_start_offset == 20
