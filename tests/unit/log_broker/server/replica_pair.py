"""
Nodes with their logs on disks in memory, and the fetching between them done by hand, one step at a time.
"""

import asyncio
from pathlib import Path
from uuid import UUID

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.following import Lost
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.partition.replication import Leadership
from log_broker.core.raft.lease import Lease
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import batches_in, build_batch, iterate_records
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.readers import ReplicaRead
from log_broker.server.partitions.replica import Membership
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.storage.memory_files import MemoryFileSystem

DATA = Path("data")
NOW_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)


def config(**overrides: str) -> TopicConfig:
    """Where nothing else is said the leader alone is enough."""
    given = {"min_insync_replicas": "1", **overrides}
    return TopicConfig.from_overrides({name.replace("_", "."): value for name, value in given.items()}, None)


class ReplicaNode:
    """One node with one partition, `runtime`."""

    def __init__(self, node_id: int, topic: TopicConfig, *, lag_ms_max: int = 30_000) -> None:
        self.node_id = node_id
        self.topic = topic
        self.now_ms = NOW_MS
        self.files = MemoryFileSystem(lambda: self.now_ms)
        self.lag_ms_max = lag_ms_max
        self.lease_ms = 0
        self.open()

    def open(self) -> None:
        """Start on what is on the disk; the role is unknown then."""
        self.lease = Lease(lambda: self.lease_ms, session_timeout_ms=9_000)
        self.logs = LogManager(
            DATA,
            asyncio.get_running_loop(),
            validator=None,
            clock_ms=lambda: self.now_ms,
            files=self.files,
            membership=Membership(node_id=self.node_id, lease=self.lease, replica_lag_time_max_ms=self.lag_ms_max),
        )
        self.logs.open_all(lambda topic: self.topic)
        self.runtime: PartitionRuntime = self.logs.create("t", 0, TOPIC_ID, self.topic)

    async def power_cut(self) -> None:
        """Lose all that was not synced, and start again."""
        files = self.files.crash()
        await self.logs.close()
        self.files = files
        self.open()

    async def restart(self) -> None:
        await self.logs.close()
        self.open()

    async def written(self, end: int) -> None:
        """Wait until a leader's log has got so far; the last of it may be on no disk yet."""
        while self.runtime.log_end_offset < end:
            more = asyncio.Event()
            self.runtime.leading.on_appended(self.runtime.log_end_offset, more.set)
            await more.wait()

    async def settled(self) -> None:
        """Wait until nothing is being written or synced."""
        while not self.runtime.replica.core.writes.is_idle:  # noqa: ASYNC110 - nothing tells of a sync by itself
            await asyncio.sleep(0)

    def lead(
        self, epoch: int, *, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), version: int = 0
    ) -> None:
        self.runtime.role.become_leader(
            Leadership(leader_epoch=epoch, partition_epoch=version or epoch, replicas=replicas, isr=isr)
        )

    def produce(
        self, *values: bytes, acks: int = -1, timestamp: int = NOW_MS, **fields: int
    ) -> "asyncio.Future[AppendResult]":
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        records = build_batch([(timestamp, b"k", value, ()) for value in values], **fields)
        self.runtime.append(records, acks=acks, done=answer.set_result)
        return answer

    def log(self) -> bytes:
        """The bytes of the whole log."""
        names = sorted(name for name in self.files.names(DATA / "t-0") if name.endswith(".log"))
        return b"".join(self.files.read(DATA / "t-0" / name) or b"" for name in names)

    def values(self, *, committed: bool = False) -> list[bytes | None]:
        """What a consumer reads, markers left out."""
        found: list[bytes | None] = []
        runtime, offset = self.runtime, self.runtime.log_start_offset
        while True:
            result = runtime.read(offset, 1 << 20, isolation_level=int(committed))
            assert result.error is ErrorCode.NONE
            if not result.size:
                return found
            for chunk in result.chunks:
                for position, header in batches_in(chunk):
                    if not header.is_control:
                        records = iterate_records(chunk[position : position + header.size])
                        found += [record.value for record in records]
                    offset = header.last_offset + 1


async def fetch_once(leader: ReplicaNode, follower: ReplicaNode, *, max_bytes: int = 1 << 20) -> ReplicaRead:
    """One fetch, as a fetcher and a leader's handler do it, divergence included."""
    to, source = follower.runtime, leader.runtime
    offset = to.log_end_offset
    read = source.leading.read_replica(offset, max_bytes, to.following.latest_epoch)
    if read.diverging is not None:
        epoch, end = read.diverging
        own_epoch, own_end = to.epoch_end_offset(epoch)
        await truncate(follower, min(end, own_end) if own_epoch == epoch else own_end)
    elif read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        await restart_at(follower, read.log_start_offset)
    else:
        assert read.error is ErrorCode.NONE
        source.leading.follower_fetched(follower.node_id, 1, offset, to.log_start_offset)
        answer: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        to.following.append_fetched(
            memoryview(b"".join(read.chunks)),
            source.leader_epoch,
            read.high_watermark,
            read.log_start_offset,
            lambda error, end: answer.set_result(error),
        )
        error = await answer
        if error is not None:
            raise error
    await asyncio.sleep(0)  # an answer that was there at once must not keep the leader's work from going on
    return read


async def catch_up(leader: ReplicaNode, *followers: ReplicaNode, max_bytes: int = 1 << 20) -> None:
    """Fetch until a whole round changes nothing; before that the leader's disk has done its part."""
    await leader.settled()
    seen: list[tuple[int, int]] = []
    for _ in range(1000):
        for follower in followers:
            await fetch_once(leader, follower, max_bytes=max_bytes)
        now = [(node.runtime.log_end_offset, node.runtime.high_watermark) for node in (leader, *followers)]
        if now == seen:
            return
        seen = now
    raise AssertionError("the followers never catch up")


async def truncate(node: ReplicaNode, offset: int) -> Lost | None:
    answer: asyncio.Future[Lost | None] = asyncio.get_running_loop().create_future()
    node.runtime.following.truncate(offset, answer.set_result)
    return await answer


async def restart_at(node: ReplicaNode, offset: int) -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    node.runtime.following.restart_at(offset, lambda: answer.set_result(None))
    await answer
