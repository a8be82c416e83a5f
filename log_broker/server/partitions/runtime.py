"""
One partition on this node, as handlers, coordinators and the log manager use it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from log_broker.config.broker import TopicConfig
from log_broker.core.partition.admission import CHECKED_AT_ONCE_BYTES_MAX, CHECKED_AT_ONCE_MAX
from log_broker.core.partition.producers import ProducerEntry
from log_broker.core.partition.protocol import AppendQuarantined, AppendResult, AppendUnsequenced, EndTransaction
from log_broker.core.partition.transactions import PartitionTransactions
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import TRANSACTIONAL, read_header
from log_broker.records.compression import DecompressionBoundError
from log_broker.records.contracts import Fault
from log_broker.records.control import EndMarker
from log_broker.records.record import build_batch, first_of_time
from log_broker.server.partitions.readers import READ_COMMITTED, Cancel, ReadResult, WaitingCallback, read_batches
from log_broker.server.partitions.replica import ReplicaRuntime
from log_broker.server.partitions.runner import Done
from log_broker.storage.append_job import SealedSync
from log_broker.storage.compaction import CompactionJob, CompactionPlan, Rewritten, plan_compaction
from log_broker.storage.segment_swap import complete, stage
from log_broker.storage.time_search import batch_of_time, latest_timestamp

_log = logging.getLogger(__name__)

OPENED_FOR_TIME_MAX = 8  # batches in which a search by time looks for a record

T = TypeVar("T")


class AtRisk(NamedTuple):
    """
    What of one partition a power cut would take although it is acknowledged: `records` from `first_offset` on.

    `age_ms` is that of the oldest, at the most.
    """

    first_offset: int
    records: int
    bytes: int
    age_ms: int


class PartitionRuntime(ReplicaRuntime):
    """One replica: written to where it leads, read, and kept."""

    _empty_answer: tuple[tuple[int, int, int], object, bytes] | None = None

    @property
    def config(self) -> TopicConfig:
        return self._state.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._core.configure(config)
        self.quarantines = self._core.appends.rules.records.quarantines
        self._log.limits = config
        self._set_flush_timer()

    @property
    def last_stable_offset(self) -> int:
        return self._state.last_stable_offset

    def at_risk(self) -> AtRisk:
        core, log = self._core, self._log
        first = max(core.state.synced_end, log.recovery_point)
        records = core.state.written_end - first
        if records <= 0:
            return AtRisk(core.state.written_end, 0, 0, 0)
        since_ms = core.writes.unsynced_since_ms
        return AtRisk(
            first, records, log.unsynced_bytes, 0 if since_ms is None else max(self._clock_ms() - since_ms, 0)
        )

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """What is known of each producer, by its id."""
        return self._state.producers.all()

    @property
    def unsequenced_batches(self) -> int:
        """How many batches came from producers that are not idempotent, or from the broker itself."""
        return self._core.appends.unsequenced_batches

    @property
    def appended_records(self) -> int:
        """How many records have been appended since the partition was opened."""
        return self._state.written_end - self._opened_at

    @property
    def offline_reason(self) -> str | None:
        """Why this partition takes no writes any more, if it does not."""
        return self._state.offline_reason

    @property
    def is_closed(self) -> bool:
        """Whether the partition was closed or deleted; a reader that waited finds it gone."""
        return self._closed

    @property
    def producer_count(self) -> int:
        return len(self._state.producers)

    def size_bytes(self) -> int:
        return self._log.size_bytes

    # Writing.

    def append(self, records: memoryview | bytes | bytearray, *, acks: int, done: Done) -> None:
        """
        Append one batch; `done` is called exactly once, possibly before this returns.

        With acks 1 or -1 that is once the batch is as durable as the topic asks, with 0 once it has its offset. A
        memoryview must be writable: the offset is written into it.
        """
        if self._closed:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        batch = records if isinstance(records, memoryview) else memoryview(bytearray(records))
        if self._behind is not None:
            self._behind.append((batch, acks, done))
            return
        effects = self._core.appends.append(batch, acks, done, self._clock_ms())
        if effects:
            self._run(effects)

    def append_quarantined(self, batch: memoryview, done: Done) -> None:
        """Append what another partition has left out of a batch; see `core.partition.protocol.AppendQuarantined`."""
        if self._closed:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._run(self._core.handle(AppendQuarantined(batch, done), self._clock_ms()))

    async def faults_of(self, batch: memoryview) -> Sequence[Fault]:
        """Say which records of a batch break the topic's contracts, as these are known here by now."""
        admission = self._core.appends.admission(batch, read_header(batch), self._clock_ms())
        faults: Sequence[Fault] = await self._aside(admission.faults)
        return faults

    def aside(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run work that takes more than a turn of the event loop in a thread."""
        return self._aside(work)

    def stored_batch(self, base_offset: int) -> bytes | None:
        """Return the batch that begins at an offset, readable by clients or not; None when it is gone."""
        if not self._state.log_start_offset <= base_offset < self._state.written_end:
            return None
        try:
            data = self._log.read(base_offset, 1, self._state.written_end, at_least_one=True)
        except OSError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"a batch could not be read: {error}") from error
        header = read_header(data) if data else None
        return None if header is None or header.base_offset != base_offset else data[: header.size]

    async def append_records(
        self, records: Sequence[tuple[bytes | None, bytes | None]], timestamp_ms: int | None = None
    ) -> int:
        """Append (key, value) pairs as one batch and return the first offset; raises BrokerError."""
        now_ms = self._clock_ms() if timestamp_ms is None else timestamp_ms
        answer: asyncio.Future[AppendResult] = self._loop.create_future()

        def done(result: AppendResult) -> None:
            if not answer.done():
                answer.set_result(result)

        batch = build_batch((now_ms, key, value, ()) for key, value in records)
        self.append(batch, acks=-1, done=done)
        result = await answer
        if result.error is not ErrorCode.NONE:
            raise BrokerError(result.error, result.message or "")
        return result.base_offset

    # Transactions.

    @property
    def transactions(self) -> PartitionTransactions:
        """Which producers may append transactional batches. Who allows one appends it at once."""
        return self._state.transactions

    def append_transactional(
        self, records: Sequence[tuple[bytes | None, bytes | None]], producer_id: int, producer_epoch: int, done: Done
    ) -> None:
        """Append (key, value) pairs for a producer that did not send them itself, in its transaction."""
        if self._closed:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        now_ms = self._clock_ms()
        batch = build_batch(
            ((now_ms, key, value, ()) for key, value in records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            attributes=TRANSACTIONAL,
        )
        self._run(self._core.handle(AppendUnsequenced(memoryview(batch), done), now_ms))

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: EndMarker, done: Done, *, bumped: bool = False
    ) -> None:
        """Append the marker of a transaction; see `core.partition.EndTransaction`."""
        if self._closed:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        event = EndTransaction(producer_id, producer_epoch, marker, done, bumped)
        self._run(self._core.handle(event, self._clock_ms()))

    # Reading.

    def read(self, offset: int, max_bytes: int, *, isolation_level: int = 0, min_one: bool = True) -> ReadResult:
        """
        Read whole batches from `offset` on, at most up to the high watermark (read_committed: last stable offset).

        At most `max_bytes`, unless `min_one` and the first batch alone is larger. An offset outside the log is
        OFFSET_OUT_OF_RANGE.
        """
        result = read_batches(
            self._state,
            self._log,
            offset,
            max_bytes,
            committed=isolation_level == READ_COMMITTED,
            min_one=min_one,
            trusted_from=self._trusted_from,
        )
        if result.damaged_at >= 0:
            self.on_damaged(result.damaged_at)
        if result.error is ErrorCode.KAFKA_STORAGE_ERROR:
            self.storage_errors += 1
        return result

    # What follows is asked of each of the many partitions of a fetch, most of which have nothing new.

    def is_read_up_to(self, offset: int, leader_epoch: int, committed: bool) -> bool:
        """
        Whether this is the leader of an epoch, -1 for any, and has nothing to read from `offset` on.

        False says nothing: it is for `check_leader_epoch` and `read` to say more.
        """
        core = self._core
        return (
            offset == (core.state.last_stable_offset if committed else core.state.high_watermark)
            and core.state.is_leader
            and (leader_epoch < 0 or leader_epoch == core.state.epochs.current)
        )

    def empty_answer(self, encode: Callable[[int, int, int, int], bytes]) -> bytes:
        """Return `encode(partition, *offsets)`, which is kept for as long as it is asked for and they stay the same."""
        core, kept = self._core, self._empty_answer
        offsets = core.state.high_watermark, core.state.last_stable_offset, core.state.log_start_offset
        if kept is not None and kept[0] == offsets and kept[1] is encode:
            return kept[2]
        answer = encode(self.partition, *offsets)
        self._empty_answer = offsets, encode, answer
        return answer

    def offsets(self) -> tuple[int, int, int]:
        """Return (high watermark, last stable offset, log start offset)."""
        core = self._core
        return core.state.high_watermark, core.state.last_stable_offset, core.state.log_start_offset

    def unread_bytes(self, offset: int, *, isolation_level: int = 0) -> tuple[int, int] | None:
        """
        Return (bytes, end offset) of what `read` would find from `offset` on, without reading any of it.

        None when that does not lie in one segment, or cannot be told; raises OSError.
        """
        core = self._core
        end = core.state.last_stable_offset if isolation_level == READ_COMMITTED else core.state.high_watermark
        if self._closed or offset < core.state.log_start_offset:
            return None
        if end <= offset:
            return 0, offset
        size = self._log.bytes_between(offset, end)
        return None if size is None else (size, end)

    def on_readable(self, offset: int, callback: Callable[[], None]) -> Cancel:
        """Call `callback` once when there is more to read behind `offset` or the partition goes away."""
        reader = WaitingCallback(self._loop, self.waiters, callback)
        self.waiters.add(reader, 0, offset, committed=False)
        return reader.cancel

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """Say what is wrong with the leader epoch that a client believes in; -1 stands for not knowing."""
        if epoch < 0 or epoch == self._state.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self._state.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which the record at `offset` was written."""
        return self._state.epochs.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch up to this one, its end offset), (-1, -1) when there is none."""
        return self._state.epochs.end_offset(epoch, self._state.written_end)

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """
        Return (offset, timestamp) of the first record that is at least as late; raises OSError and BrokerError.

        Where headers name times that none of their records has, it is not looked into batches for ever: then this is
        the first offset of the first of them, which lies before every record that is so late.
        """
        offset = self._state.log_start_offset
        first: tuple[int, int] | None = None
        opened = 0
        while True:
            end_offset = self._state.high_watermark
            step = batch_of_time(self._log.segments, timestamp_ms, from_offset=offset, end_offset=end_offset)
            if step is None:
                return None
            batch, behind = step
            if batch:
                found = await self._first_of_time(batch, timestamp_ms, offset, end_offset)
                if found is not None:
                    return found
                if first is None:
                    header = read_header(batch)
                    first = max(header.base_offset, offset), header.max_timestamp
                opened += 1
                if opened >= OPENED_FOR_TIME_MAX:
                    return first
            else:
                await asyncio.sleep(0)
            if self._closed:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition was closed")
            offset = behind

    async def _first_of_time(
        self, batch: bytes, timestamp_ms: int, from_offset: int, end_offset: int
    ) -> tuple[int, int] | None:
        search = partial(first_of_time, batch, timestamp_ms, from_offset, end_offset)
        if read_header(batch).record_count <= CHECKED_AT_ONCE_MAX:
            with suppress(DecompressionBoundError):
                return search(bytes_max=CHECKED_AT_ONCE_BYTES_MAX)
        return await self.aside(search)

    async def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp; raises OSError and BrokerError."""
        latest = latest_timestamp(self._log.segments)
        while latest is None:
            await asyncio.sleep(0)
            latest = latest_timestamp(self._log.segments)
        return await self.offset_for_timestamp(latest) if latest >= 0 else None

    # Keeping.

    def delete_records(self, before_offset: int) -> int:
        """
        Make `before_offset` the first readable offset (-1: the high watermark) and return the new log start.

        Raises BrokerError(OFFSET_OUT_OF_RANGE) beyond the high watermark. Segments go with the next retention pass.
        """
        if not self._state.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica follows")
        offset = self._state.high_watermark if before_offset == -1 else before_offset
        if offset < 0 or offset > self._state.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{before_offset} lies beyond the high watermark {self.high_watermark}"
            )
        self._state.advance_log_start(offset)
        return self._state.log_start_offset

    def enforce_retention(self, now_ms: int) -> int:
        """Let go of what retention no longer keeps; return the number of segments removed. Raises OSError."""
        if self._closed or self._compaction is not None or self._log.truncation is not None:
            return 0
        core, log = self._core, self._log
        by_config = "delete" in core.state.config.cleanup_policy
        if by_config and core.writes.is_idle and core.state.offline_reason is None and log.active_expired(now_ms):
            log.roll_active(core.writes.producer_rows, now_ms)
        count = log.expired_segments(
            now_ms,
            log_start_offset=core.state.log_start_offset,
            high_watermark=core.state.high_watermark,
            by_config=by_config,
        )
        retired: list[Path] = []
        try:
            for _ in range(count):
                retired += log.remove_first()
        finally:
            if retired:
                core.state.advance_log_start(log.start_offset)
                self._loop.call_later(core.state.config.file_delete_delay_ms / 1000, self._remove_files, retired)
        return count

    def _remove_files(self, paths: Sequence[Path]) -> None:
        if self._closed:
            return  # the next start removes them, or the whole directory goes

        def remove() -> None:
            for path in paths:
                self._files.remove(path)

        self._pool.submit(remove, self._removed)

    def _removed(self, error: BaseException | None) -> None:
        if error is not None and not self._closed:
            _log.error("files that left %s-%d could not be removed: %s", self.topic, self.partition, error)

    def expire_producers(self, now_ms: int, *, after_ms: int) -> int:
        """Forget producers that have been silent for so long; return how many."""
        return self._state.producers.expire(now_ms - after_ms) if self._core.writes.is_idle else 0

    def sync_sealed(self) -> None:
        """Bring sealed segments that no append will sync to the disk, in a pool thread."""
        offline = self._state.offline_reason is not None
        busy = self._log.truncation is not None or bool(self._when_quiet)
        sync = None if self._closed or offline or busy else self._log.sealed_sync()
        if sync is not None:
            self._sealed_syncs += 1
            self._pool.submit(sync.run, partial(self._sealed_synced, sync))

    def _sealed_synced(self, sync: SealedSync, error: BaseException | None) -> None:
        self._sealed_syncs -= 1
        if error is None:
            self._log.sealed_synced(sync)
        elif not self._closed:
            _log.error("syncing %s-%d failed: %s", self.topic, self.partition, error)
            self.storage_errors += 1
            # A second try would succeed without these bytes being on the disk.
            self._go_offline(f"a sync failed: {error}")
        self._maybe_quiet()

    # Compaction: begun, then rewritten beside the event loop, installed piece by piece, ended.

    def compaction_plan(self, compacted_to: int, now_ms: int) -> CompactionPlan | None:
        """
        Return what can be compacted, given how far that was done before; None when that is nothing. Raises OSError.

        An active segment that has been open for too long is closed first, so that an idle topic is compacted too.
        """
        core, log, config = self._core, self._log, self._state.config
        if self._closed or self._compaction is not None or self._sealed_syncs or not config.is_compacted:
            return None
        if log.truncation is not None or self._when_quiet:
            return None
        if core.writes.is_idle and core.state.offline_reason is None and log.active_overdue(now_ms):
            log.roll_active(core.writes.producer_rows, now_ms)
        segments = log.closed_segments(min(core.state.high_watermark, core.state.last_stable_offset))
        # A log that was cut below the point to which it had been compacted is begun again.
        known = bool(segments) and core.state.log_start_offset <= compacted_to <= segments[-1][1]
        first_dirty = compacted_to if known else core.state.log_start_offset
        closed = log.facts_of(segments, dirty_from=first_dirty, limits=config)
        return plan_compaction(closed, first_dirty_offset=first_dirty, limits=config, now_ms=now_ms)

    def begin_compaction(self, plan: CompactionPlan, *, map_bytes_max: int, now_ms: int) -> CompactionJob:
        """Return the work of one pass; until `end_compaction` no segment leaves this log in another way."""
        assert self._compaction is None, "one compaction at a time"
        core, log = self._core, self._log
        self._compaction = job = CompactionJob(
            self._files,
            log.directory,
            log.closed_segments(plan.end_offset),
            log.segments[-1],
            plan,
            limits=core.state.config,
            sequences_at=frozenset(row.batch.last_offset for row in core.state.producers.rows()),
            map_bytes_max=map_bytes_max,
            now_ms=now_ms,
            aborted={segment.base_offset: log.aborted.of(segment.base_offset) for segment in log.segments},
            last_epochs={pid: entry.epoch for pid, entry in core.state.producers.all().items() if not entry.batches},
        )
        return job

    def stage_compacted(self, rewritten: Rewritten) -> None:
        """Have a rewritten segment ready to be installed; raises OSError."""
        stage(self._files, self._log, rewritten)

    def install_compacted(self, rewritten: Rewritten) -> None:
        """Let a staged segment take its place; raises OSError."""
        try:
            complete(self._files, self._log, rewritten)
        except OSError as error:
            self._go_offline(f"a compacted segment could not take its place: {error}")
            raise

    def cancel_compaction(self) -> None:
        """Have a compaction under way stop and touch nothing more by name."""
        if self._compaction is not None:
            self._compaction.cancel()

    def end_compaction(self) -> None:
        self._compaction = None
        self._maybe_quiet()
