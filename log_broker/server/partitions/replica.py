"""
A partition's role in this process: leading with followers, or following.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from log_broker.core.partition.following import Lost
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.partition.replication import Follower, IsrProposal, Leadership
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partitions.readers import Cancel, ReplicaRead, read_for_replica
from log_broker.server.partitions.runner import PartitionRunner
from log_broker.storage.damage import intact_part, replace_batch
from log_broker.storage.truncation import TruncationCancelledError, TruncationJob

_log = logging.getLogger(__name__)

FetchDone = Callable[[BrokerError | None, int], None]


class ReplicaRuntime(PartitionRunner):
    """What the replica manager and the fetchers use; see `core.partition.roles`."""

    _followers_timer: asyncio.TimerHandle | None = None

    @property
    def is_leader(self) -> bool:
        return self._state.is_leader

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this replica leads or follows."""
        return self._state.leader_epoch

    @property
    def latest_epoch(self) -> int:
        """The epoch of the last batch in the log, -1 for an empty one: what a follower's fetch names."""
        return self._state.epochs.latest

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas as this leader knows them; empty for a follower."""
        leading = self._state.leading
        if leading is not None:
            return leading.isr
        return (self._membership.node_id,) if self.is_leader else ()

    @property
    def partition_epoch(self) -> int:
        """That of the state this leader goes by; -1 for a follower and for a leader that is the only replica."""
        leading = self._state.leading
        return -1 if leading is None else leading.partition_epoch

    @property
    def followers(self) -> Mapping[int, Follower]:
        """Those that follow this leader, by their node."""
        leading = self._state.leading
        return {} if leading is None else leading.followers

    @property
    def awaits_watermark(self) -> bool:
        """Whether this leader's high watermark is still that of its time as a follower: more is committed perhaps."""
        leading = self._state.leading
        return leading is not None and self._state.high_watermark < leading.epoch_start

    @property
    def log_end_offset(self) -> int:
        """The end of what is written: what followers may fetch, and where a follower fetches next."""
        return self._state.written_end

    @property
    def is_idle(self) -> bool:
        """Whether every batch that was taken is written."""
        return self._core.writes.is_idle

    @property
    def synced_end(self) -> int:
        """The end of what survives a power cut."""
        return self._state.synced_end

    # The role.

    def become_leader(self, leadership: Leadership) -> None:
        """Lead in this epoch, or take in the committed ISR while leading; anything older changes nothing."""
        effects = self._core.roles.become_leader(
            leadership,
            node_id=self._membership.node_id,
            lag_ms_max=self._membership.replica_lag_time_max_ms,
            steady_ms=self._steady_ms(),
        )
        self._run(effects)
        self._role_changed()
        self._set_flush_timer()

    def become_follower(self, leader_epoch: int, leader_id: int = -1) -> None:
        """Follow in this epoch; -1: there is no leader now. An older epoch changes nothing."""
        led = self._state.is_leader
        self._run(self._core.roles.become_follower(leader_epoch, leader_id))
        if led and not self._state.is_leader:
            # Who waits here for more is to ask the new leader.
            self.waiters.wake_all()
            self._replica_waiters.wake_all()
            self._role_changed()

    def isr_settled(self, leadership: Leadership) -> None:
        """Take the state that the controller answered a proposal with."""
        self._run(self._core.roles.isr_settled(leadership, steady_ms=self._steady_ms()))
        self._role_changed()

    def isr_refused(self, error: ErrorCode, proposal: IsrProposal | None = None) -> None:
        """
        Take the controller's refusal, or that its answer never came (any retriable error).

        One that is about another `proposal` than that under way changes nothing.
        """
        leading = self._state.leading
        if proposal is None or (leading is not None and leading.proposal is proposal):
            self._run(self._core.roles.isr_refused(error, steady_ms=self._steady_ms()))
            self._arm_followers()

    def _end(self) -> None:
        super()._end()
        self._arm_followers()

    def _role_changed(self) -> None:
        self.has_followers = self._state.leading is not None
        self._arm_followers()

    def _arm_followers(self) -> None:
        if self._followers_timer is not None:
            self._followers_timer.cancel()
            self._followers_timer = None
        deadline_ms = self._core.roles.followers_deadline_ms()
        if deadline_ms is not None and not self._closed:
            delay_ms = max(deadline_ms - self._steady_ms(), 0)
            self._followers_timer = self._loop.call_later(delay_ms / 1000, self._check_followers)

    def _check_followers(self) -> None:
        self._followers_timer = None
        self._run(self._core.roles.check_followers(self._steady_ms()))
        self._arm_followers()

    # A leader's followers.

    def read_replica(
        self, offset: int, max_bytes: int, last_fetched_epoch: int, *, min_one: bool = True
    ) -> ReplicaRead:
        """
        Read for a follower, up to the end of the log.

        A follower whose log diverges is told where to cut it and gets no records. OFFSET_OUT_OF_RANGE outside the log,
        NOT_LEADER_OR_FOLLOWER from a follower.
        """
        result = read_for_replica(
            self._state,
            self._log,
            offset,
            max_bytes,
            last_fetched_epoch,
            min_one=min_one,
            trusted_from=self._trusted_from,
        )
        if result.damaged_at >= 0:
            self.on_damaged(result.damaged_at)
        if result.error is ErrorCode.KAFKA_STORAGE_ERROR:
            self.storage_errors += 1
        return result

    def suspect(self, offset: int) -> None:
        """A follower was sent what is at `offset` and asks for it again: see whether it is damaged."""
        try:
            data = self._log.read(offset, 0, self._state.written_end, at_least_one=True)
        except OSError as failure:
            _log.error("reading %s-%d failed: %s", self.topic, self.partition, failure)
            return
        if data and not intact_part(data).size:
            self.on_damaged(offset)

    def patch(self, offset: int, batch: memoryview, done: Callable[[BaseException | None], None]) -> bool:
        """
        Put an intact copy in the place of the damaged batch that holds `offset`; `done` once it is on the disk.

        False, and nothing is done, while the log is being changed otherwise or where the copy is not of that batch.
        """
        if self._closed or self._compaction is not None or self._job is not None or self._log.truncation is not None:
            return False
        try:
            segment = replace_batch(self._log, offset, batch)
        except OSError as failure:
            done(failure)
            return True
        if segment is not None:
            self._pool.submit(segment.file.sync, done)
        return segment is not None

    def follower_fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """
        Take note that a replica holds everything before `fetch_offset`.

        To be called only when `read_replica` has found neither an error nor that the logs diverge.
        """
        self._run(
            self._core.roles.follower_fetched(
                replica_id, broker_epoch, fetch_offset, log_start_offset, steady_ms=self._steady_ms()
            )
        )

    def on_appended(
        self, offset: int, callback: Callable[[], None], *, known_high_watermark: int | None = None
    ) -> Cancel:
        """
        Call `callback` once when the log has grown beyond `offset` or this replica leads no more.

        With `known_high_watermark` also when that has moved on.
        """
        return self._replica_waiters.add(offset, callback, known_high_watermark=known_high_watermark)

    # Following.

    def append_fetched(
        self,
        records: memoryview,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        done: FetchDone,
    ) -> None:
        """
        Append what the leader of `leader_epoch` sent, with its high watermark and log start.

        `done` gets an error or None, and the new end of the log, once all is as durable as the topic asks, so that the
        next fetch may say so. Nothing is taken with an error: KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE,
        FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH. The bytes must stay as they are until then.
        """

        def answer(result: AppendResult) -> None:
            error = None if result.error is ErrorCode.NONE else BrokerError(result.error, result.message or "")
            done(error, self._state.written_end)

        if self._closed:
            done(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is closed"), self._state.written_end)
            return
        effects = self._core.following.append_fetched(
            records, leader_epoch, high_watermark, log_start_offset, answer, now_ms=self._clock_ms()
        )
        self._run(effects)

    def truncate(self, offset: int, done: Callable[[Lost | None], None]) -> None:
        """
        Cut off `offset` and what lies behind; `done` gets what that was, once it is gone from the disk too.

        None when there was nothing. A log that cannot be cut goes offline, and the next append says so.
        """

        def cut() -> None:
            if self._closed or self._state.is_leader or offset >= self._state.written_end:
                if not self._state.is_leader:
                    self._state.epochs.truncate(offset)  # one in which this replica led and wrote nothing
                done(None)
                return
            log = self._log
            try:
                inside = offset >= log.start_offset
                job = (
                    log.prepare_truncation(offset, self._clock_ms())
                    if inside
                    else log.prepare_restart(offset, self._clock_ms())
                )
            except OSError as error:
                self._go_offline(f"the log could not be cut at {offset}: {error}")
                done(None)
                return
            self._cut(job, partial(done, self._core.following.truncate(job.end_offset)))

        self._once_quiet(cut)

    def left_behind(self) -> Lost | None:
        """Say what was acknowledged and may be lost if this replica goes now."""
        return self._core.commits.left_behind()

    def restart_at(self, offset: int, done: Callable[[], None] = lambda: None) -> None:
        """Drop the whole log, which lies below the leader's, and begin again at `offset`; `done` as in `truncate`."""

        def restart() -> None:
            if self._closed or self._state.is_leader:
                done()
                return
            job = self._log.prepare_restart(offset, self._clock_ms())
            self._core.following.restart_at(offset)
            self._cut(job, done)

        self._once_quiet(restart)

    def cancel_jobs(self) -> None:
        """Have a write or a cut under way touch nothing more by name; returns once it does not."""
        if self._job is not None:
            self._job.cancel()
        if self._log.truncation is not None:
            self._log.truncation.cancel()

    def _cut(self, job: TruncationJob, done: Callable[[], None]) -> None:
        epochs, watermark = self._state.epochs.starts, self._state.high_watermark
        lower_checkpoints = self._lower_checkpoints(self)

        def run() -> None:
            # First: a recovery point behind the end would keep recovery from checking what is written there next.
            lower_checkpoints()
            job.run(epochs, watermark)

        def cut(error: BaseException | None) -> None:
            if error is None:
                self._log.commit_truncation(job)
            elif not isinstance(error, TruncationCancelledError):
                self.storage_errors += 1
                self._go_offline(f"the log could not be cut: {error}")
            self._run(self._core.following.truncated(job.producers, job.ending))
            done()

        self._pool.submit(run, cut)
