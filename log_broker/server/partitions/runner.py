"""
Runs the effects of `core.partition` on one replica: writes its log, answers, wakes who waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from log_broker.core.partition.protocol import (
    AskTurn,
    AskValidator,
    CheckAside,
    Effect,
    IsrWanted,
    LogEndMoved,
    Reply,
    TransactionsAborted,
    TurnEnded,
    WatermarkMoved,
    Write,
    WriteFailed,
    Written,
)
from log_broker.server.partitions.long_checks import LongChecks
from log_broker.server.partitions.readers import ReplicaWaiters, Waiters
from log_broker.server.partitions.replica import Replica
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.storage.append_job import AppendJob

_log = logging.getLogger(__name__)


class EffectRunner:
    """Runs effects in order, those that they bring about after them, and one write at a time."""

    def __init__(self, replica: Replica, waiters: Waiters, follower_waiters: ReplicaWaiters) -> None:
        self.is_running = False
        self.job: AppendJob | None = None  # the write under way
        self.on_settled: Callable[[], None] | None = None  # to be called when the effects at hand have been run
        self.checks = LongChecks(replica, self.run)
        self._replica = replica
        self._waiters = waiters
        self._follower_waiters = follower_waiters
        self._effects: deque[Effect] = deque()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._trouble = RateLimitedLog(_log, replica.loop.time, logging.ERROR)

    def run(self, effects: Iterable[Effect]) -> None:
        """Run effects in order, with those that they bring about after them."""
        queue = self._effects
        queue.extend(effects)
        if self.is_running:
            return
        self.is_running = True
        replica = self._replica
        try:
            while queue:
                effect = queue.popleft()
                match effect:
                    case Reply():
                        self._reply(effect)
                    case AskTurn():
                        replica.loop.call_soon(self._turn)
                    case Write():
                        self._write(effect)
                    case WatermarkMoved():
                        state = replica.state
                        self._waiters.wake(effect.high_watermark, state.last_stable_offset)
                        self._follower_waiters.wake(state.written_end, effect.high_watermark)
                    case LogEndMoved():
                        self._follower_waiters.wake(effect.written_end, replica.state.high_watermark)
                    case _:
                        self._run_rare(effect)
        finally:
            self.is_running = False
        if self._idle is not None and replica.core.writes.is_idle and not self._idle.done():
            self._idle.set_result(None)
        if self.on_settled is not None:
            self.on_settled()

    def _run_rare(self, effect: TransactionsAborted | IsrWanted | AskValidator | CheckAside) -> None:
        match effect:
            case TransactionsAborted():
                for transaction in effect.transactions:
                    self._replica.log.note_aborted(transaction)
            case IsrWanted():
                self._replica.on_isr_wanted(effect.proposal)
            case CheckAside():
                self.checks.check(effect)
            case AskValidator():
                self.checks.learn(effect)

    async def until_idle(self) -> None:
        """Return once every batch that was taken is written."""
        if not self._replica.core.writes.is_idle:
            self._idle = self._replica.loop.create_future()
            await self._idle

    def _turn(self) -> None:
        self.run(self._replica.core.handle(TurnEnded(), self._replica.clock_ms()))

    def _reply(self, reply: Reply) -> None:
        if reply.result.refused:
            self._replica.on_refused(reply.result.refused)
        try:
            reply.token(reply.result)
        except Exception:
            # One requester's trouble must not keep the others of this write from their answers.
            replica = self._replica
            _log.exception("the answer to an append to %s-%d could not be given", replica.topic, replica.partition)

    def _write(self, write: Write) -> None:
        replica = self._replica
        if replica.is_deleted:
            # The directory has been moved away, and one of the same name may belong to a new topic by now.
            self.run(replica.core.handle(WriteFailed("the partition was deleted"), replica.clock_ms()))
            return
        try:
            self.job = job = replica.log.prepare(
                write.batches,
                sync=write.sync,
                now_ms=replica.clock_ms(),
                producer_rows=replica.core.writes.producer_rows,
                epochs=write.epochs,
                gaps=write.gaps,
            )
        except OSError as error:
            self._fail(error, lost_sync=False)
            return
        if job.waits_for_disk:
            replica.pool.submit(job, partial(self._written, job))
            return
        try:
            job()
        except Exception as error:
            self._written(job, error)
        else:
            self._written(job, None)

    def _written(self, job: AppendJob, error: BaseException | None) -> None:
        self.job = None
        replica = self._replica
        if error is None:
            replica.log.commit(job)
            replica.appended_bytes += sum(map(len, job.buffers))
            self._trouble.recovered("%s-%d is written again", replica.topic, replica.partition)
            self.run(replica.core.handle(Written(len(job.batches), job.synced), replica.clock_ms()))
            self.set_flush_timer()
            return
        if not isinstance(error, OSError):
            _log.error("a fault of our own in writing %s-%d", replica.topic, replica.partition, exc_info=error)
        try:
            replica.log.abandon(job)
        except OSError as worse:
            replica.go_offline(f"the failed write could not be taken back: {worse}")
        self._fail(error, lost_sync=job.synced)

    def _fail(self, error: BaseException, *, lost_sync: bool) -> None:
        replica = self._replica
        self._trouble.failed("writing %s-%d failed: %s", replica.topic, replica.partition, error)
        replica.storage_errors += 1
        replica.on_write_failed()
        self.run(replica.core.handle(WriteFailed(str(error), lost_sync), replica.clock_ms()))
        if lost_sync and replica.state.offline_reason is not None:
            replica.go_offline(replica.state.offline_reason)

    def set_flush_timer(self) -> None:
        """Have what is written synced when the topic's flush.ms asks for it; called when that may have changed."""
        replica = self._replica
        deadline = replica.core.writes.next_deadline_ms()
        if deadline is None or self._flush_timer is not None or replica.is_closed:
            return
        self._flush_timer = replica.loop.call_later(max(deadline - replica.clock_ms(), 0) / 1000, self._flush_due)

    def stop_flush_timer(self) -> None:
        """Sync nothing more by itself."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()

    def _flush_due(self) -> None:
        self._flush_timer = None
        writes = self._replica.core.writes
        self.run(writes.tick(self._replica.clock_ms()))
        if not writes.is_writing:
            self.set_flush_timer()
