"""The background compaction of a node's logs: which, how far, and what a restart or a deletion does to it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest

import log_broker
from log_broker.config.broker import TopicConfig
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import batches_in, build_batch, iterate_records
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.files import OsFileSystem

NOW_MS = 1_700_000_000_000
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "500", "delete.retention.ms": "0"}


class HeldFiles(OsFileSystem):
    """Real files; a rewritten segment is not begun before `go_on`."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.reached = threading.Event()

    def remove(self, path: Path) -> None:
        if path.suffix == ".cleaned":
            self.reached.set()
            self.go_on.wait(30)
        super().remove(path)


Manager = Callable[..., LogManager]


@pytest.fixture
async def manager(tmp_path) -> AsyncIterator[Manager]:
    made: list[LogManager] = []

    def make(files: HeldFiles | None = None, *, now_ms: int = NOW_MS, **overrides: str) -> LogManager:
        config = TopicConfig.from_overrides(COMPACT | {n.replace("_", "."): t for n, t in overrides.items()}, None)
        logs = LogManager(
            tmp_path / "data", asyncio.get_running_loop(), validator=None, clock_ms=lambda: now_ms, files=files
        )
        logs.open_all(lambda topic: config)
        logs.create("t", 0, UUID(int=1), config)
        made.append(logs)
        return logs

    yield make
    for logs in made:
        await logs.close()


def runtime_of(logs: LogManager) -> PartitionRuntime:
    runtime = logs.get("t", 0)
    assert runtime is not None
    return runtime


async def fill(runtime: PartitionRuntime, count: int, *, keys: int = 3) -> None:
    for at in range(count):
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        batch = bytes(build_batch([(NOW_MS, b"key %d" % (at % keys), b"value %d" % at, ())]))
        runtime.append(batch, acks=-1, done=answer.set_result)
        assert (await answer).error is ErrorCode.NONE


def offsets(runtime: PartitionRuntime) -> list[int]:
    found: list[int] = []
    offset = runtime.log_start_offset
    while offset < runtime.high_watermark:
        data = b"".join(runtime.read(offset, 1 << 20).chunks)
        for at, header in batches_in(data):
            found += [record.offset for record in iterate_records(data[at : at + header.size])]
            offset = header.last_offset + 1
    return found


async def test_a_log_is_compacted_when_it_is_dirty_enough_and_a_restart_knows_how_far(manager, tmp_path) -> None:
    logs = manager(min_cleanable_dirty_ratio="0.5")
    await fill(runtime_of(logs), 40)
    assert await logs.compact() == 1
    found = offsets(runtime_of(logs))
    assert len(found) < 15
    assert found[-1] == 39
    version, count, line = (tmp_path / "data" / "cleaner-offset-checkpoint").read_text().splitlines()
    assert (version, count) == ("0", "1")
    assert line.startswith("t 0 ")
    assert await logs.compact() == 0, "nothing is dirty"
    await logs.close()

    again = manager(min_cleanable_dirty_ratio="0.5")
    assert offsets(runtime_of(again)) == found
    assert runtime_of(again).log_end_offset == 40
    assert await again.compact() == 0


async def test_a_small_memory_takes_several_passes(manager) -> None:
    logs = manager()
    await fill(runtime_of(logs), 60, keys=20)
    assert await logs.compact(map_bytes_max=200 * 8) > 1
    assert len(offsets(runtime_of(logs))) < 40


async def test_only_compacted_topics_are_touched(manager) -> None:
    logs = manager(cleanup_policy="delete")
    await fill(runtime_of(logs), 40)
    assert await logs.compact() == 0
    assert offsets(runtime_of(logs)) == list(range(40))


async def test_an_idle_log_is_compacted_to_its_end_after_the_longest_lag(manager, tmp_path) -> None:
    logs = manager(segment_bytes="1000000", max_compaction_lag_ms="1000", min_cleanable_dirty_ratio="1")
    await fill(runtime_of(logs), 40)
    assert await logs.compact() == 0
    await logs.close()
    clock = NOW_MS
    config = TopicConfig.from_overrides(
        COMPACT | {"segment.bytes": "1000000", "max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "1"}, None
    )
    logs = LogManager(tmp_path / "data", asyncio.get_running_loop(), validator=None, clock_ms=lambda: clock)
    logs.open_all(lambda topic: config)
    clock += 1001
    assert await logs.compact() == 1
    assert offsets(runtime_of(logs)) == [37, 38, 39]
    await logs.close()


async def test_old_segments_of_a_compacted_topic_go_where_both_policies_hold(manager) -> None:
    logs = manager(cleanup_policy="compact,delete", retention_ms="1000")
    await fill(runtime_of(logs), 40)
    assert await logs.compact() == 1
    assert offsets(runtime_of(logs))[0] < 39
    assert logs.enforce_retention(NOW_MS + 1001) > 0
    assert offsets(runtime_of(logs)) == []
    assert runtime_of(logs).log_start_offset == 40


async def test_a_topic_can_be_deleted_and_made_again_in_the_middle(manager, tmp_path) -> None:
    files = HeldFiles()
    logs = manager(files)
    await fill(runtime_of(logs), 40)
    files.go_on.clear()
    running = asyncio.create_task(logs.compact())
    await asyncio.to_thread(files.reached.wait, 30)
    config = runtime_of(logs).config
    threading.Timer(0.05, files.go_on.set).start()  # `cancel` waits for the one call under way
    logs.delete("t", 0)
    fresh = logs.create("t", 0, UUID(int=2), config)
    assert await running == 0
    await fill(fresh, 5)
    assert offsets(fresh) == list(range(5))
    names = {path.name for path in (tmp_path / "data" / "t-0").iterdir()}
    assert {name for name in names if "." in name and name.split(".", 1)[1] not in {"metadata"}} == {
        "00000000000000000000.log"
    }


async def test_closing_breaks_a_compaction_off(manager) -> None:
    files = HeldFiles()
    logs = manager(files)
    await fill(runtime_of(logs), 40)
    files.go_on.clear()
    running = asyncio.create_task(logs.compact())
    await asyncio.to_thread(files.reached.wait, 30)
    threading.Timer(0.05, files.go_on.set).start()
    await logs.close()
    assert await running == 0
    again = manager()
    assert offsets(runtime_of(again)) == list(range(40))
    assert await again.compact() == 1


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_stock_client_ends_with_the_last_value_of_each_key(codec) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    last: dict[bytes, tuple[int, bytes | None]] = {}

    def delivered(error, message) -> None:
        assert error is None
        last[message.key()] = (message.offset(), message.value())

    def read_all(bootstrap: str) -> list[tuple[int, bytes, bytes | None]]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True})
        consumer.assign([TopicPartition("t", 0, 0)])
        found = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                break
            found.append((message.offset(), message.key(), message.value()))
        consumer.close()
        return found

    with log_broker.embedded(log_cleaner_backoff_ms="20") as broker:
        overrides = {
            "cleanup.policy": "compact",
            "segment.bytes": "4000",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1",
            "delete.retention.ms": "0",
        }
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1, config=overrides)])["t"].result(30)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "compression.type": codec}
        )
        for number in range(2000):
            value = None if number % 23 == 0 else json.dumps({"n": number})
            producer.produce("t", key=f"key {number % 50}", value=value, on_delivery=delivered)
        assert producer.flush(60) == 0
        expected = sorted((offset, key, value) for key, (offset, value) in last.items() if value is not None)
        while (found := read_all(broker.bootstrap_servers)) != expected:
            assert {(o, k, v) for o, k, v in found} >= set(expected), "the last value is never missing"
            # Tombstones go in the round after their first rewriting, and a round needs something new.
            producer.produce("t", key="nudge", value=None)
            producer.flush(30)
            found = [entry for entry in read_all(broker.bootstrap_servers) if entry[1] != b"nudge"]
            if found == expected:
                break
        _, high = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}).get_watermark_offsets(
            TopicPartition("t", 0), timeout=30
        )
        assert high >= 2000
