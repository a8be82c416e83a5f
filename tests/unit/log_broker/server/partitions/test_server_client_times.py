"""
The times that clients give their records, old, future or none, and what the broker decides by its own clock.

Everything runs on real files: a segment's own time is that of its file.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from replica_pair import ReplicaNode, catch_up

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from log_broker.storage.files import OsFileSystem

DAY_MS = 86_400_000
TOPIC_ID = UUID(int=7)
NONE, OLD, FUTURE = "none", "old", "future"
TIMES = (NONE, OLD, FUTURE)
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
COMPACT = {"cleanup.policy": "compact,delete"}


@dataclass
class Broker:
    """The logs of one node, whose clock a test moves."""

    data_dir: Path
    config: TopicConfig = field(default_factory=lambda: TopicConfig.from_overrides(ANY_TIME))
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def open(self) -> None:
        self.logs = LogManager(
            self.data_dir,
            asyncio.get_running_loop(),
            validator=None,
            clock_ms=lambda: self.now_ms,
            files=OsFileSystem(),
        )
        self.logs.open_all(lambda topic: self.config)
        self.runtime: PartitionRuntime = self.logs.create("t", 0, TOPIC_ID, self.config)

    async def restart(self, how: str) -> None:
        """Stop and start again: in order, as after a kill, or after one that has lost the producers' snapshots too."""
        await self.logs.close()
        if how != "clean":
            (self.data_dir / CLEAN_SHUTDOWN_FILE).unlink()
        if how == "without snapshots":
            for snapshot in (self.data_dir / "t-0").glob("*.snapshot"):
                snapshot.unlink()
        self.open()

    def time(self, kind: str) -> int:
        return {NONE: -1, OLD: self.now_ms - 2 * DAY_MS, FUTURE: self.now_ms + 3650 * DAY_MS}[kind]

    async def append(self, timestamp: int, value: bytes = b"v", **fields: Any) -> AppendResult:
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        batch = build_batch([(timestamp, b"k", value, ())], **fields)
        self.runtime.append(bytes(batch), acks=-1, done=answer.set_result)
        return await answer

    async def send(self, timestamp: int, sequence: int) -> AppendResult:
        return await self.append(timestamp, producer_id=7, producer_epoch=0, base_sequence=sequence)

    def expire(self) -> int:
        """Do what the broker does every five minutes; say how many producers it forgot."""
        return self.runtime.keeping.expire_producers(self.now_ms, after_ms=DAY_MS)

    def age_files(self, by_ms: int) -> None:
        """Have the segments count as written so much earlier."""
        for path in (self.data_dir / "t-0").glob("*.log"):
            at = path.stat().st_mtime_ns - by_ms * 1_000_000
            os.utime(path, ns=(at, at))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.open()
    yield broker
    await broker.logs.close()


# How long a producer is remembered.


@pytest.mark.parametrize("kind", TIMES)
async def test_a_producer_is_as_old_as_its_last_batch_whatever_time_that_names(broker: Broker, kind: str) -> None:
    for sequence in range(3):
        assert (await broker.send(broker.time(kind), sequence)).base_offset == sequence
    broker.now_ms += DAY_MS
    assert broker.expire() == 0
    assert (await broker.send(broker.time(kind), 2)).base_offset == 2, "the repeat of a batch whose answer was lost"
    assert (await broker.send(broker.time(kind), 50)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    broker.now_ms += 1
    assert broker.expire() == 1
    assert len(broker.runtime.producers) == 0


@pytest.mark.parametrize("how", ["clean", "killed", "without snapshots"])
@pytest.mark.parametrize("kind", TIMES)
async def test_a_restart_makes_a_producer_neither_old_nor_eternal(broker: Broker, kind: str, how: str) -> None:
    await broker.send(broker.time(kind), 0)
    await broker.restart(how)
    broker.now_ms += DAY_MS - 60_000
    assert broker.expire() == 0
    assert (await broker.send(broker.time(kind), 0)).base_offset == 0
    broker.now_ms += 120_000
    assert broker.expire() == 1


async def test_a_replay_takes_a_producer_to_be_as_old_as_the_segment(broker: Broker) -> None:
    await broker.send(broker.time(OLD), 0)
    await broker.logs.close()
    broker.age_files(2 * DAY_MS)
    for path in (broker.data_dir / "t-0").glob("*.snapshot"):
        path.unlink()
    broker.open()
    assert broker.expire() == 1


async def test_a_follower_remembers_a_producer_by_its_own_clock() -> None:
    topic = TopicConfig.from_overrides({"min.insync.replicas": "1"})
    leader, follower = ReplicaNode(1, topic), ReplicaNode(2, topic)
    leader.lead(1, isr=(1,), replicas=(1, 2))
    follower.runtime.role.become_follower(1, 1)
    now_ms = leader.now_ms
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    await leader.produce(b"a", timestamp=now_ms - 2 * DAY_MS, **fields)
    await catch_up(leader, follower)
    assert follower.runtime.keeping.expire_producers(now_ms + DAY_MS, after_ms=DAY_MS) == 0
    follower.lead(2, isr=(2,), replicas=(1, 2))
    repeated = await follower.produce(b"a", timestamp=now_ms - 2 * DAY_MS, **fields)
    assert (repeated.error, repeated.base_offset) == (ErrorCode.NONE, 0)
    assert follower.runtime.keeping.expire_producers(now_ms + DAY_MS + 1, after_ms=DAY_MS) == 1
    for node in (leader, follower):
        await node.logs.close()


async def test_a_log_that_is_cut_does_not_forget_who_wrote_the_rest() -> None:
    topic = TopicConfig.from_overrides({"min.insync.replicas": "1"})
    node = ReplicaNode(1, topic)
    node.lead(1, isr=(1,), replicas=(1, 2))
    for sequence in range(2):
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        await node.produce(b"a", timestamp=node.now_ms - 2 * DAY_MS, **fields)
    node.runtime.role.become_follower(2, 2)
    done = asyncio.get_running_loop().create_future()
    node.runtime.following.truncate(1, done.set_result)
    await done
    assert node.runtime.keeping.expire_producers(node.now_ms + DAY_MS, after_ms=DAY_MS) == 0
    assert len(node.runtime.producers) == 1
    await node.logs.close()


# How long records without a time are kept.


@pytest.mark.parametrize("restart", [None, "clean", "killed"])
@pytest.mark.parametrize("overrides", [{}, COMPACT], ids=["delete", "compact,delete"])
async def test_records_without_a_time_are_as_old_as_their_segment(
    tmp_path: Path, overrides: dict[str, str], restart: str | None
) -> None:
    broker = Broker(tmp_path / "data", TopicConfig.from_overrides({"segment.bytes": "200", **overrides}))
    broker.open()
    for number in range(4):
        assert (await broker.append(-1, b"%d" % number)).error is ErrorCode.NONE
    if restart is not None:
        await broker.restart(restart)
    retention_ms = broker.config.retention_ms
    assert broker.logs.enforce_retention(broker.now_ms + retention_ms - 60_000) == 0
    assert broker.runtime.log_start_offset == 0
    assert broker.logs.enforce_retention(broker.now_ms + retention_ms + 60_000) > 0
    assert broker.runtime.log_start_offset == 4
    await broker.logs.close()


async def test_a_compacted_segment_is_as_old_as_those_it_was_made_from(tmp_path: Path) -> None:
    overrides = {"segment.bytes": "200", "min.cleanable.dirty.ratio": "0", **COMPACT}
    broker = Broker(tmp_path / "data", TopicConfig.from_overrides(overrides))
    broker.open()
    for number in range(6):
        await broker.append(-1, b"%d" % number)
    await broker.logs.close()
    broker.age_files(5 * DAY_MS)
    broker.open()
    assert await broker.logs.compact() == 1
    assert broker.logs.enforce_retention(broker.now_ms + DAY_MS) == 0
    await broker.restart("clean")
    assert broker.logs.enforce_retention(broker.now_ms + DAY_MS) == 0
    assert broker.logs.enforce_retention(broker.now_ms + 2 * DAY_MS + 60_000) > 0
    await broker.logs.close()


async def test_of_records_with_and_without_a_time_those_with_one_count(tmp_path: Path) -> None:
    """As in Kafka: a segment is as old as its largest timestamp, if any record has one."""
    broker = Broker(tmp_path / "data", TopicConfig.from_overrides({"segment.bytes": "300"}))
    broker.open()
    for timestamp in (broker.now_ms - 10 * DAY_MS, -1, -1, -1, -1, -1):
        await broker.append(timestamp)
    _, second = broker.runtime.replica.log.segments
    assert broker.logs.enforce_retention(broker.now_ms) == 1
    assert broker.runtime.log_start_offset == second.base_offset > 1
    await broker.logs.close()


async def test_records_without_a_time_wait_for_compaction_as_others_do(tmp_path: Path) -> None:
    base = {"segment.bytes": "200", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    for number, (limit, passes) in enumerate(
        (("min.compaction.lag.ms", (0, 1)), ("max.compaction.lag.ms", (0, 1))), start=1
    ):
        ratio = {"min.cleanable.dirty.ratio": "1"} if limit.startswith("max") else {}
        broker = Broker(tmp_path / str(number), TopicConfig.from_overrides({**base, **ratio, limit: str(DAY_MS)}))
        broker.open()
        for value in range(6):
            await broker.append(-1, b"%d" % value)
        found = [await broker.logs.compact()]
        broker.now_ms += DAY_MS + 60_000
        found.append(await broker.logs.compact())
        assert tuple(found) == passes, limit
        await broker.logs.close()


async def test_a_search_by_time_passes_over_records_without_one(broker: Broker) -> None:
    now_ms = broker.now_ms
    for timestamp in (-1, now_ms, -1, now_ms + 5, -1):
        await broker.append(timestamp)
    assert await broker.runtime.times.offset_for_timestamp(0) == (1, now_ms)
    assert await broker.runtime.times.offset_for_timestamp(now_ms + 1) == (3, now_ms + 5)
    assert await broker.runtime.times.offset_for_timestamp(now_ms + 6) is None
    assert await broker.runtime.times.offset_of_max_timestamp() == (3, now_ms + 5)


async def test_where_no_record_has_a_time_none_is_found(broker: Broker) -> None:
    await broker.append(-1)
    assert await broker.runtime.times.offset_for_timestamp(0) is None
    assert await broker.runtime.times.offset_of_max_timestamp() is None


async def test_a_bound_on_the_past_takes_records_without_a_time(tmp_path: Path) -> None:
    """As Kafka does: a mirror of an old topic brings such records."""
    broker = Broker(tmp_path / "data", TopicConfig.from_overrides({"message.timestamp.before.max.ms": "1000"}))
    broker.open()
    assert (await broker.append(-1)).error is ErrorCode.NONE
    assert (await broker.append(broker.now_ms - 2000)).error is ErrorCode.INVALID_TIMESTAMP
    await broker.logs.close()
