"""What lies on the disk of a partition, and how it is touched: only appended to, read forward, as it was sent."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from node_client import running

from log_broker.config.broker import DAY_MS, TopicConfig
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import Codec, build_batch
from log_broker.server.coordinators.internal_topics import ensure_offsets_topic
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.files import File, OsFile, OsFileSystem
from log_broker.wire.apis import ApiKey

NOW_MS = 1_700_000_000_000


@dataclass
class Traced(OsFileSystem):
    """Real files, and for each `.log` what was done: (what, position, bytes)."""

    traces: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)

    def open(self, path: Path) -> File:
        return TracedFile(path, self.traces.setdefault(path.name, []))

    def of_logs(self, what: str) -> dict[str, list[tuple[int, int]]]:
        return {
            name: [(position, size) for kind, position, size in trace if kind == what]
            for name, trace in self.traces.items()
            if name.endswith(".log")
        }


class TracedFile(OsFile):
    """A file of a `Traced`."""

    def __init__(self, path: Path, trace: list[tuple[str, int, int]]) -> None:
        super().__init__(path)
        self.trace = trace

    def read_at(self, position: int, length: int) -> bytes:
        data = super().read_at(position, length)
        self.trace.append(("read", position, len(data)))
        return data

    def write_at(self, position: int, buffers: Any) -> None:
        self.trace.append(("write", position, sum(map(len, buffers))))
        super().write_at(position, buffers)

    def truncate(self, size: int) -> None:
        self.trace.append(("truncate", size, 0))
        super().truncate(size)


@pytest.fixture
async def disk_and_logs(tmp_path: Path) -> AsyncIterator[tuple[Traced, LogManager]]:
    disk = Traced()
    logs = LogManager(
        tmp_path / "data", asyncio.get_running_loop(), validator=None, clock_ms=lambda: NOW_MS, files=disk
    )
    logs.open_all(lambda topic: TopicConfig.from_overrides({}))
    yield disk, logs
    await logs.close()


def topic_config(**overrides: str) -> TopicConfig:
    return TopicConfig.from_overrides({name.replace("_", "."): value for name, value in overrides.items()})


async def append(runtime: PartitionRuntime, *values: bytes, codec: Codec = Codec.NONE) -> AppendResult:
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    records = build_batch([(NOW_MS, b"k", value, ()) for value in values], codec=codec)
    runtime.append(bytes(records), acks=-1, done=answer.set_result)
    return await answer


async def test_segments_are_only_ever_appended_to(disk_and_logs: tuple[Traced, LogManager], tmp_path: Path) -> None:
    disk, logs = disk_and_logs
    runtime = logs.create("t", 0, uuid4(), topic_config(segment_bytes="2000", retention_ms="-1"))
    directory = tmp_path / "data" / "t-0"
    digests: dict[str, str] = {}
    for at in range(60):
        await append(runtime, b"%d" % at * 20)
        for path in sorted(directory.glob("*.log"))[:-1]:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert digests.setdefault(path.name, digest) == digest, "a closed segment has changed"
    assert len(digests) == 3
    for name, writes in disk.of_logs("write").items():
        end = 0
        for position, size in writes:
            assert position == end, f"{name} was written elsewhere than at its end"
            end += size
    assert not any(disk.of_logs("truncate").values())


async def test_a_producer_cannot_name_the_place_of_its_records(disk_and_logs: tuple[Traced, LogManager]) -> None:
    """Produce is the one call that writes records, and it appends: there is no way to write over any."""
    _, logs = disk_and_logs
    runtime = logs.create("t", 0, uuid4(), topic_config())
    await append(runtime, b"a", b"b")
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    other = build_batch([(NOW_MS, b"k", b"other", ())], base_offset=1)
    runtime.append(bytes(other), acks=-1, done=answer.set_result)
    assert (await answer).error is ErrorCode.INVALID_RECORD
    assert (await append(runtime, b"c")).base_offset == 2


async def test_a_reader_at_the_end_reads_forward(disk_and_logs: tuple[Traced, LogManager]) -> None:
    disk, logs = disk_and_logs
    runtime = logs.create("t", 0, uuid4(), topic_config(segment_bytes="2000", fluvial_durability="memory"))
    for offset in range(60):
        await append(runtime, b"%d" % offset * 20)
        assert runtime.read(offset, 1 << 20).size > 0
    reads = disk.of_logs("read")
    assert len(reads) > 3
    for positions in reads.values():
        starts = [position for position, _ in positions]
        assert starts == sorted(starts)
        # Each record once, and in a new segment a look at where it begins.
        assert len(set(starts)) >= len(starts) - 1


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_batch_lies_on_the_disk_as_it_was_sent(tmp_path: Path, codec: Codec) -> None:
    values = [b"the same thing over and over " * 20] * 30
    batch = bytes(build_batch([(NOW_MS, b"k", value, ()) for value in values], codec=codec))
    async with running(tmp_path / "node") as (_, client):
        await client.create("t")
        for _ in range(2):
            assert (await client.produce("t", batch)).error_code == ErrorCode.NONE
        stored = (tmp_path / "node" / "t-0" / f"{0:020d}.log").read_bytes()
    assert len(stored) == 2 * len(batch)
    for at in range(2):
        one = stored[at * len(batch) : (at + 1) * len(batch)]
        assert int.from_bytes(one[:8], "big") == at * len(values), "its offset is given by the log"
        assert (one[8:12], one[16:]) == (batch[8:12], batch[16:]), "all else, checksum included, is the producer's"
    if codec is not Codec.NONE:
        assert len(batch) < sum(map(len, values)) / 5


async def test_groups_leave_nothing_in_a_partition(tmp_path: Path) -> None:
    def files() -> dict[str, int]:
        return {path.name: path.stat().st_size for path in (tmp_path / "node" / "t-0").iterdir()}

    async with running(tmp_path / "node") as (node, client):
        await client.create("t")
        await client.produce("t", bytes(build_batch([(NOW_MS, b"k", b"v", ())])))
        await ensure_offsets_topic(node)
        before = files()
        for group in range(30):
            partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
            topic = {"name": "t", "partitions": (partition,)}
            request = {"group_id": f"g{group}", "generation_id_or_member_epoch": -1, "member_id": ""}
            answer = await client.ask(
                ApiKey.OFFSET_COMMIT, {**request, "group_instance_id": None, "topics": (topic,)}, version=8
            )
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert files() == before


async def test_without_a_word_records_stay_for_seven_days(disk_and_logs: tuple[Traced, LogManager]) -> None:
    _, logs = disk_and_logs
    runtime = logs.create("t", 0, uuid4(), topic_config())
    await append(runtime, b"a")
    logs.enforce_retention(NOW_MS + 7 * DAY_MS)
    assert runtime.log_start_offset == 0
    logs.enforce_retention(NOW_MS + 7 * DAY_MS + 1)
    assert runtime.log_start_offset == 1


async def test_log_dirs_report_the_partitions_of_every_topic(tmp_path: Path) -> None:
    async with running(tmp_path / "node") as (_, client):
        for topic in ("a", "b", "c"):
            await client.create(topic, partitions=2)
        await client.produce("b", bytes(build_batch([(NOW_MS, b"k", b"v", ())])), partition=1)
        answer = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        (directory,) = answer.results
        assert directory.error_code == ErrorCode.NONE
        sizes = {
            (topic.name, partition.partition_index): partition.partition_size
            for topic in directory.topics
            for partition in topic.partitions
        }
        assert {place for place in sizes if not place[0].startswith("__")} == {
            (topic, partition) for topic in "abc" for partition in (0, 1)
        }
        assert sizes["b", 1] > 0 == sizes["a", 0]
