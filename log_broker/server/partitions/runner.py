"""
The asyncio driver of one partition: runs the effects of `core.partition` on a `storage.log`.

Everything here happens in the event loop's thread, except the write and sync of an append job.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from log_broker.core.cluster.image import INTERNAL_TOPICS
from log_broker.core.cluster.quarantine_topics import is_quarantine
from log_broker.core.partition.admission import Admitted
from log_broker.core.partition.partition import Partition
from log_broker.core.partition.protocol import (
    AppendResult,
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
from log_broker.core.partition.replication import IsrProposal
from log_broker.core.raft.lease import Lease
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partitions.readers import ReplicaWaiters, Waiters
from log_broker.server.partitions.reopening import Recover, distrust_cached, read_again
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.server.process.machine import Pool
from log_broker.storage.append_job import AppendJob
from log_broker.storage.compaction import CompactionJob
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog

_log = logging.getLogger(__name__)

Done = Callable[[AppendResult], None]
# Runs work that takes more than a turn of the event loop in a thread; the future is of what it returns or raises.
Aside = Callable[..., "asyncio.Future[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a node's replicas need to know of its place in the cluster."""

    node_id: int
    lease: Lease | None = None
    replica_lag_time_max_ms: int = 30_000


class PartitionRunner:
    """What every replica on this node needs, whatever its role."""

    def __init__(
        self,
        core: Partition,
        log: PartitionLog,
        *,
        partition: int,
        topic_id: UUID,
        files: FileSystem,
        pool: Pool,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        membership: Membership | None = None,
        lower_checkpoints: Callable[["PartitionRunner"], Callable[[], None]] = lambda _: _nothing,
        aside: Aside | None = None,
    ) -> None:
        """
        `lower_checkpoints` returns what brings the node's checkpoints down to a log that became shorter.

        Without `aside` long work runs in the threads of the event loop.
        """
        self.topic = core.state.topic
        self.partition = partition
        self.topic_id = topic_id
        self.is_quarantine = is_quarantine(core.state.topic)
        self.is_internal = core.state.topic in INTERNAL_TOPICS
        self.is_brokers_own = self.is_internal or self.is_quarantine  # clients do not write to it
        self.quarantines = core.appends.rules.records.quarantines
        self._core = core
        self._state = core.state
        self._log = log
        self._files = files
        self._pool = pool
        self._loop = loop
        self._trouble = RateLimitedLog(_log, loop.time, logging.ERROR)
        self._clock_ms = clock_ms
        self._lower_checkpoints = lower_checkpoints
        self._membership = membership if membership is not None else Membership(node_id=0)
        self._effects: deque[Effect] = deque()
        self._running = False
        self.waiters = Waiters()
        self._replica_waiters = ReplicaWaiters(loop)
        self._flush_timer: asyncio.TimerHandle | None = None
        self._job: AppendJob | None = None
        self._compaction: CompactionJob | None = None
        self._aside: Aside = partial(loop.run_in_executor, None) if aside is None else aside
        self._checks = 0  # of batches, under way in a thread
        self._behind: deque[tuple[memoryview, int, Done]] | None = None  # what came meanwhile, in its order
        self._sealed_syncs = 0  # under way, finding segments by name
        self._when_quiet: deque[Callable[[], None]] = deque()  # what must not meet anything else in the log
        self._closed = False
        self._given_up = False
        self._idle: asyncio.Future[None] | None = None
        self._opened_at = core.state.written_end
        self.appended_bytes = 0  # since it was opened
        self.storage_errors = 0  # since it was opened
        self.has_followers = False  # whether acks=all waits for others
        self.on_isr_wanted: Callable[[IsrProposal], None] = _ask_nobody
        self.on_damaged: Callable[[int], None] = self._report_damage

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._state.log_start_offset

    @property
    def recovery_point(self) -> int:
        """The end of what is known to be on the disk."""
        return self._log.recovery_point

    def take_missing(self) -> Sequence[tuple[int, int]]:
        """Return, once, the ranges [first, end) that recovery found to be missing in the middle of the log."""
        missing, self._log.missing = self._log.missing, ()
        return missing

    @property
    def _trusted_from(self) -> int:
        """What lies before it may have come from the disk since it was checked, and is checked again when read."""
        return max(self._opened_at, self._log.segments[-1].base_offset)

    def _report_damage(self, offset: int) -> None:
        _log.error("%s-%d is damaged at offset %d, and nobody has a copy", self.topic, self.partition, offset)

    def _steady_ms(self) -> int:
        """Monotonic time: what a leader measures its followers by."""
        return int(self._loop.time() * 1000)

    def _turn(self) -> None:
        self._run(self._core.handle(TurnEnded(), self._clock_ms()))

    def _look_again(self, asked: AskValidator, is_known: bool) -> None:
        """Append a batch that the validator would have refused by what it knew, or refuse it now."""
        batch, acks, token = asked
        if self._closed:
            self._run((Reply(token, AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)),))
        elif not is_known:
            message = "what is valid here cannot be looked up now"
            self._run((Reply(token, AppendResult(ErrorCode.REQUEST_TIMED_OUT, message=message)),))
        else:
            self._run(self._core.appends.append(batch, acks, token, self._clock_ms(), has_learned=True))

    def _run(self, effects: Iterable[Effect]) -> None:
        """Run effects in order, with those that they bring about behind them."""
        queue = self._effects
        queue.extend(effects)
        if self._running:
            return
        self._running = True
        try:
            while queue:
                effect = queue.popleft()
                match effect:
                    case Reply():
                        self._reply(effect)
                    case AskTurn():
                        self._loop.call_soon(self._turn)
                    case Write():
                        self._write(effect)
                    case WatermarkMoved():
                        self.waiters.wake(effect.high_watermark, self._state.last_stable_offset)
                        self._replica_waiters.wake(self._state.written_end, effect.high_watermark)
                    case LogEndMoved():
                        self._replica_waiters.wake(effect.written_end, self._state.high_watermark)
                    case _:
                        self._run_rare(effect)
        finally:
            self._running = False
        if self._idle is not None or self._when_quiet:
            self._maybe_idle()

    def _maybe_idle(self) -> None:
        if self._idle is not None and self._core.writes.is_idle and not self._idle.done():
            self._idle.set_result(None)
        self._maybe_quiet()

    def _once_quiet(self, action: Callable[[], None]) -> None:
        """Run `action` when nothing is being written, synced or compacted; nothing new begins before."""
        self._when_quiet.append(action)
        self._maybe_quiet()

    def _maybe_quiet(self) -> None:
        if self._when_quiet and self._compaction is not None:
            self._compaction.cancel()
        while self._when_quiet and not (self._running or self._compaction or self._sealed_syncs):
            if not self._core.writes.is_idle:
                return
            self._when_quiet.popleft()()

    def _check_aside(self, asked: CheckAside) -> None:
        self._checks += 1
        if self._behind is None:
            self._behind = deque()
        self._aside(asked.admission.run).add_done_callback(partial(self._checked, asked))

    def _checked(self, asked: CheckAside, checked: "asyncio.Future[Admitted]") -> None:
        """Append a batch whose records have been checked, or refuse it, and then what came behind it."""
        self._checks -= 1
        outcome: Admitted | BrokerError
        try:
            outcome = checked.result()
        except BrokerError as error:
            outcome = error
        except asyncio.CancelledError:
            outcome = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping")
        except Exception as error:
            _log.error("a fault of our own in checking a batch for %s-%d", self.topic, self.partition, exc_info=error)
            outcome = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed; see its log")
        if self._closed:
            self._run((Reply(asked.token, AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)),))
        else:
            batch, acks, token = asked.batch, asked.acks, asked.token
            now_ms = self._clock_ms()
            self._run(
                self._core.appends.append(batch, acks, token, now_ms, has_learned=asked.has_learned, outcome=outcome)
            )
        behind = self._behind
        while behind and not self._checks:
            batch, acks, done = behind.popleft()
            self._append(batch, acks, done)
        if not self._checks:
            self._behind = None

    def _append(self, batch: memoryview, acks: int, done: Done) -> None:
        if self._closed:
            self._run((Reply(done, AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)),))
            return
        effects = self._core.appends.append(batch, acks, done, self._clock_ms())
        if effects:
            self._run(effects)

    def _run_rare(self, effect: TransactionsAborted | IsrWanted | AskValidator | CheckAside) -> None:
        match effect:
            case TransactionsAborted():
                for transaction in effect.transactions:
                    self._log.note_aborted(transaction)
            case IsrWanted():
                self.on_isr_wanted(effect.proposal)
            case CheckAside():
                self._check_aside(effect)
            case AskValidator():
                assert self._core.appends.learn is not None, "only who can learn is asked to"
                self._core.appends.learn(partial(self._look_again, effect))

    def _reply(self, reply: Reply) -> None:
        try:
            reply.token(reply.result)
        except Exception:
            # One requester's trouble must not keep the others of this write from their answers.
            _log.exception("the answer to an append to %s-%d could not be given", self.topic, self.partition)

    def _write(self, write: Write) -> None:
        if self._given_up:
            # The directory has been moved away, and one of the same name may belong to a new topic by now.
            self._run(self._core.handle(WriteFailed("the partition was deleted"), self._clock_ms()))
            return
        try:
            self._job = job = self._log.prepare(
                write.batches,
                sync=write.sync,
                now_ms=self._clock_ms(),
                producer_rows=self._core.writes.producer_rows,
                epochs=write.epochs,
                gaps=write.gaps,
            )
        except OSError as error:
            self._fail(error, lost_sync=False)
            return
        if job.waits_for_disk:
            self._pool.submit(job.run, partial(self._written, job))
            return
        try:
            job.run()
        except Exception as error:
            self._written(job, error)
        else:
            self._written(job, None)

    def _written(self, job: AppendJob, error: BaseException | None) -> None:
        self._job = None
        if error is None:
            self._log.commit(job)
            self.appended_bytes += sum(map(len, job.buffers))
            self._trouble.recovered("%s-%d is written again", self.topic, self.partition)
            self._run(self._core.handle(Written(len(job.batches), job.synced), self._clock_ms()))
            self._set_flush_timer()
            return
        if not isinstance(error, OSError):
            _log.error("a fault of our own in writing %s-%d", self.topic, self.partition, exc_info=error)
        try:
            self._log.abandon(job)
        except OSError as worse:
            self._go_offline(f"the failed write could not be taken back: {worse}")
        self._fail(error, lost_sync=job.synced)

    def _fail(self, error: BaseException, *, lost_sync: bool) -> None:
        self._trouble.failed("writing %s-%d failed: %s", self.topic, self.partition, error)
        self.storage_errors += 1
        self._run(self._core.handle(WriteFailed(str(error), lost_sync), self._clock_ms()))
        if lost_sync and self._state.offline_reason is not None:
            self._go_offline(self._state.offline_reason)

    def _go_offline(self, reason: str) -> None:
        """Take no more until the log has been read from the disk again, by `reopen` or at the next start."""
        self._state.offline_reason = reason
        if not self._given_up:  # else a directory of this name is another log's
            distrust_cached(self._files, self._log.directory, reason)

    def reopen(self, recover: Recover) -> bool:
        """Bring an offline partition back as after a crash; say whether that could be tried. Raises OSError."""
        if self._closed or not self._core.writes.is_idle or self._compaction is not None or self._sealed_syncs:
            return False
        old = self._core
        self._core, self._log = read_again(self._files, old, self._log, recover)
        self._state = self._core.state
        self._run(self._core.roles.resume(old.roles))
        self.has_followers = self._state.leading is not None
        self._opened_at = min(self._opened_at, self._state.written_end)
        self.waiters.wake_all()
        return True

    def _set_flush_timer(self) -> None:
        deadline = self._core.writes.next_deadline_ms()
        if deadline is None or self._flush_timer is not None or self._closed:
            return
        self._flush_timer = self._loop.call_later(max(deadline - self._clock_ms(), 0) / 1000, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        self._run(self._core.writes.tick(self._clock_ms()))
        if not self._core.writes.is_writing:
            self._set_flush_timer()

    async def close(self) -> None:
        """Wait for writes under way, then sync and write what makes the next start quick; raises OSError."""
        if self._closed:
            return
        self._end()
        await self._until_idle()
        self._run(self._core.roles.abandon_waiting())
        if self._state.offline_reason is not None:
            self._log.close_files()
            raise OSError(errno.EIO, self._state.offline_reason)
        rows = self._core.writes.producer_rows(self._state.next_offset)
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._pool.submit(partial(self._log.close, rows), answer.set_result)
        error = await answer
        if error is not None:
            raise error

    def give_up(self) -> None:
        """Take no more, because the partition is deleted; what is gathered and not yet being written is refused."""
        self._given_up = True
        self._end()

    async def until_released(self) -> None:
        """Return once nothing touches the files of a partition that was given up."""
        await self._until_idle()
        self._run(self._core.roles.abandon_waiting())
        self._log.close_files()

    def _end(self) -> None:
        self._closed = True
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self.waiters.wake_all()
        self._replica_waiters.wake_all()

    async def _until_idle(self) -> None:
        if not self._core.writes.is_idle:
            self._idle = self._loop.create_future()
            await self._idle


def _nothing() -> None:
    """Where nobody keeps checkpoints there are none to lower."""


def _ask_nobody(proposal: IsrProposal) -> None:
    """The leader of a partition with followers is given somebody to ask before it leads."""
    _log.error("no controller is known to ask for the ISR %s", proposal.isr)
