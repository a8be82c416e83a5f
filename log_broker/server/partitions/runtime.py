"""
One partition on this node, put together of its parts, as handlers, coordinators and the log manager use it.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster.image import INTERNAL_TOPICS
from log_broker.core.cluster.quarantine_topics import is_quarantine
from log_broker.core.partition.producers import ProducerEntry
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.partition.transactions import PartitionTransactions
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import read_header
from log_broker.server.partitions.compaction import LogCompaction
from log_broker.server.partitions.exclusive_work import ExclusiveWork
from log_broker.server.partitions.following import FollowingReplica, LowerCheckpoints
from log_broker.server.partitions.keeping import LogKeeping
from log_broker.server.partitions.leading import LeadingReplica
from log_broker.server.partitions.long_checks import Done
from log_broker.server.partitions.own_appends import OwnAppends
from log_broker.server.partitions.readers import (
    READ_COMMITTED,
    Cancel,
    ReadResult,
    ReplicaWaiters,
    Waiters,
    WaitingCallback,
    check_leader_epoch,
    read_batches,
)
from log_broker.server.partitions.reopening import Recover, read_again
from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.role import ReplicaRole
from log_broker.server.partitions.runner import EffectRunner
from log_broker.server.partitions.time_search import TimeSearch
from log_broker.storage.cold_reads import ColdPart


class PartitionRuntime:
    """One partition: written to where it is led, read, closed; its parts do the rest."""

    def __init__(self, replica: Replica, lower_checkpoints: LowerCheckpoints = lambda _: _nothing) -> None:
        self.topic = replica.topic
        self.partition = replica.partition
        self.topic_id = replica.topic_id
        self.is_quarantine = is_quarantine(replica.topic)
        self.is_internal = replica.topic in INTERNAL_TOPICS
        self.is_brokers_own = self.is_internal or self.is_quarantine  # clients do not write to it
        self.quarantines = replica.core.appends.rules.records.quarantines
        self.replica = replica
        self.waiters = Waiters()
        self._follower_waiters = ReplicaWaiters(replica.loop)
        self._runner = runner = EffectRunner(replica, self.waiters, self._follower_waiters)
        self.work = work = ExclusiveWork(replica, runner)
        self.checks = runner.checks
        self.own_appends = OwnAppends(replica, runner, self.append)
        self.role = ReplicaRole(replica, runner, self.waiters, self._follower_waiters)
        self.leading = LeadingReplica(replica, runner, work, self._follower_waiters)
        self.following = FollowingReplica(replica, runner, work, lower_checkpoints)
        self.keeping = LogKeeping(replica, work)
        self.compaction = LogCompaction(replica, work)
        self.times = TimeSearch(replica)
        self._empty_answer: tuple[tuple[int, int, int], object, bytes] | None = None

    # What it is and has.

    @property
    def config(self) -> TopicConfig:
        return self.replica.state.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        core = self.replica.core
        core.configure(config)
        self.quarantines = core.appends.rules.records.quarantines
        self.replica.log.limits = config
        self._runner.set_flush_timer()

    @property
    def is_leader(self) -> bool:
        return self.replica.state.is_leader

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this replica leads or follows."""
        return self.replica.state.epochs.current

    @property
    def has_followers(self) -> bool:
        """Whether acks=all waits for others."""
        return self.replica.state.leading is not None

    @property
    def high_watermark(self) -> int:
        return self.replica.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.replica.state.last_stable_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.replica.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The end of what is written: what followers may fetch, and where a follower fetches next."""
        return self.replica.state.written_end

    @property
    def recovery_point(self) -> int:
        """The end of what is known to be on the disk."""
        return self.replica.log.recovery_point

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """What is known of each producer, by its id."""
        return self.replica.state.producers.all()

    @property
    def transactions(self) -> PartitionTransactions:
        """Which producers may append transactional batches. Who allows one appends it at once."""
        return self.replica.state.transactions

    @property
    def offline_reason(self) -> str | None:
        """Why this partition takes no writes any more, if it does not."""
        return self.replica.state.offline_reason

    @property
    def is_closed(self) -> bool:
        """Whether the partition was closed or deleted; a reader that waited finds it gone."""
        return self.replica.is_closed

    def size_bytes(self) -> int:
        return self.replica.log.size_bytes

    # Writing.

    def append(self, records: memoryview | bytes | bytearray, *, acks: int, done: Done) -> None:
        """
        Append one batch; `done` is called exactly once, possibly before this returns.

        With acks 1 or -1 that is once the batch is as durable as the topic asks, with 0 once it has its offset. A
        memoryview must be writable: the offset is written into it.
        """
        replica = self.replica
        if replica.is_closed:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        batch = records if isinstance(records, memoryview) else memoryview(bytearray(records))
        queued = self.checks.queued
        if queued is not None:
            queued.append((batch, acks, done))
            return
        effects = replica.core.appends.append(batch, acks, done, replica.clock_ms())
        if effects:
            self._runner.run(effects)

    # Reading.

    def read(
        self, offset: int, max_bytes: int, *, isolation_level: int = 0, min_one: bool = True, unread: bool = False
    ) -> ReadResult:
        """
        Read whole batches from `offset` on, at most up to the high watermark (read_committed: last stable offset).

        At most `max_bytes`, unless `min_one` and the first batch alone is larger. An offset outside the log is
        OFFSET_OUT_OF_RANGE. For `unread` see `read_batches`.
        """
        replica = self.replica
        result = read_batches(
            replica.state,
            replica.log,
            offset,
            max_bytes,
            committed=isolation_level == READ_COMMITTED,
            min_one=min_one,
            trusted_from=replica.trusted_from,
            unread=unread,
        )
        if result.damaged_at >= 0:
            replica.on_damaged(result.damaged_at)
        if result.error is ErrorCode.KAFKA_STORAGE_ERROR:
            replica.storage_errors += 1
        return result

    def cold_part(self, offset: int, max_bytes: int) -> ColdPart | None:
        """Return what `read` would wait for the disk for, see `LogReader.cold_part`; errors are left to `read`."""
        replica = self.replica
        state = replica.state
        if replica.is_closed or not state.log_start_offset <= offset < state.high_watermark:
            return None
        try:
            return replica.log.cold_part(offset, max_bytes)
        except OSError:
            return None

    def stored_batch(self, base_offset: int) -> bytes | None:
        """Return the batch that begins at an offset, readable by clients or not; None when it is gone."""
        state = self.replica.state
        if not state.log_start_offset <= base_offset < state.written_end:
            return None
        try:
            data = self.replica.log.read(base_offset, 1, state.written_end, at_least_one=True)
        except OSError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"a batch could not be read: {error}") from error
        header = read_header(data) if data else None
        return None if header is None or header.base_offset != base_offset else data[: header.size]

    # What follows is asked of each of the many partitions of a fetch, most of which have nothing new.

    def is_read_up_to(self, offset: int, leader_epoch: int, committed: bool) -> bool:
        """
        Whether this is the leader of an epoch, -1 for any, and has nothing to read from `offset` on.

        False says nothing: it is for `check_leader_epoch` and `read` to say more.
        """
        state = self.replica.state
        return (
            offset == (state.last_stable_offset if committed else state.high_watermark)
            and state.is_leader
            and (leader_epoch < 0 or leader_epoch == state.epochs.current)
        )

    def empty_answer(self, encode: Callable[[int, int, int, int], bytes]) -> bytes:
        """Return `encode(partition, *offsets)`, which is kept for as long as it is asked for and they stay the same."""
        state, kept = self.replica.state, self._empty_answer
        offsets = state.high_watermark, state.last_stable_offset, state.log_start_offset
        if kept is not None and kept[0] == offsets and kept[1] is encode:
            return kept[2]
        answer = encode(self.partition, *offsets)
        self._empty_answer = offsets, encode, answer
        return answer

    def offsets(self) -> tuple[int, int, int]:
        """Return (high watermark, last stable offset, log start offset)."""
        state = self.replica.state
        return state.high_watermark, state.last_stable_offset, state.log_start_offset

    def unread_bytes(self, offset: int, *, isolation_level: int = 0) -> tuple[int, int] | None:
        """
        Return (bytes, end offset) of what `read` would find from `offset` on, without reading any of it.

        None when that does not lie in one segment, or cannot be told; raises OSError.
        """
        replica = self.replica
        state = replica.state
        end = state.last_stable_offset if isolation_level == READ_COMMITTED else state.high_watermark
        if replica.is_closed or offset < state.log_start_offset:
            return None
        if end <= offset:
            return 0, offset
        size = replica.log.bytes_between(offset, end)
        return None if size is None else (size, end)

    def on_readable(self, offset: int, callback: Callable[[], None]) -> Cancel:
        """Call `callback` once when there is more to read behind `offset` or the partition goes away."""
        reader = WaitingCallback(self.replica.loop, self.waiters, callback)
        self.waiters.add(reader, 0, offset, committed=False)
        return reader.cancel

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """Say what is wrong with the leader epoch that a client believes in; -1 stands for not knowing."""
        return check_leader_epoch(self.replica.state, epoch)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which the record at `offset` was written."""
        return self.replica.state.epochs.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch up to this one, its end offset), (-1, -1) when there is none."""
        return self.replica.state.epochs.end_offset(epoch, self.replica.state.written_end)

    # The end of it, and what comes after a disk error.

    def reopen(self, recover: Recover) -> bool:
        """Bring an offline partition back as after a crash; say whether that could be tried. Raises OSError."""
        replica = self.replica
        old = replica.core
        if replica.is_closed or not old.writes.is_idle or not self.work.is_free:
            return False
        replica.replace(*read_again(replica.files, old, replica.log, recover))
        self._runner.run(replica.core.roles.resume(old.roles))
        self.waiters.wake_all()
        # The disk may hold more than the memory of before, as what could not be cut.
        self._follower_waiters.wake_all()
        return True

    def take_missing(self) -> Sequence[tuple[int, int]]:
        """Return, once, the ranges [first, end) that recovery found to be missing in the middle of the log."""
        log = self.replica.log
        missing, log.missing = log.missing, ()
        return missing

    async def close(self) -> None:
        """Wait for writes under way, then sync and write what makes the next start quick; raises OSError."""
        replica = self.replica
        if replica.is_closed:
            return
        self._end()
        await self._until_abandoned()
        if replica.state.offline_reason is not None:
            replica.log.close_files()
            raise OSError(errno.EIO, replica.state.offline_reason)
        rows = replica.core.writes.producer_rows(replica.state.next_offset)
        answer: asyncio.Future[BaseException | None] = replica.loop.create_future()
        replica.pool.submit(partial(replica.log.close, rows), answer.set_result)
        error = await answer
        if error is not None:
            raise error

    def give_up(self) -> None:
        """Take no more, because the partition is deleted; what is gathered and not yet being written is refused."""
        self.replica.is_deleted = True
        self._end()

    async def until_released(self) -> None:
        """Return once nothing touches the files of a partition that was given up."""
        await self._until_abandoned()
        self.replica.log.close_files()

    def _end(self) -> None:
        self.replica.is_closed = True
        self._runner.stop_flush_timer()
        self.waiters.wake_all()
        self._follower_waiters.wake_all()
        self.role.set_timer()

    async def _until_abandoned(self) -> None:
        """Wait for the writes under way, then answer what waits for followers."""
        await self._runner.until_idle()
        self._runner.run(self.replica.core.roles.abandon_waiting())


def _nothing() -> None:
    """Where nobody keeps checkpoints there are none to lower."""
