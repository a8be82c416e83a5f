"""
What a follower does with its log: appends what the leader sent, and cuts off where the leader's log is another.
"""

from collections.abc import Callable
from functools import partial

from log_broker.core.partition.following import Lost
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partitions.exclusive_work import ExclusiveWork
from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.runner import EffectRunner
from log_broker.storage.truncation import TruncationCancelledError, TruncationJob

FetchDone = Callable[[BrokerError | None, int], None]
# Returns what brings the node's checkpoints down to a log that became shorter.
LowerCheckpoints = Callable[[Replica], Callable[[], None]]


class FollowingReplica:
    """A follower's side of replication; a `core.fetch.replica_fetcher.FollowedLog`."""

    def __init__(
        self, replica: Replica, runner: EffectRunner, work: ExclusiveWork, lower_checkpoints: LowerCheckpoints
    ) -> None:
        self._replica = replica
        self._runner = runner
        self._work = work
        self._lower_checkpoints = lower_checkpoints

    @property
    def latest_epoch(self) -> int:
        """The epoch of the last batch in the log, -1 for an empty one: what a follower's fetch names."""
        return self._replica.state.epochs.latest

    @property
    def log_start_offset(self) -> int:
        return self._replica.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Where fetching goes on."""
        return self._replica.state.written_end

    @property
    def is_idle(self) -> bool:
        """Whether every batch that was taken is written."""
        return self._replica.core.writes.is_idle

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch up to this one, its end offset), (-1, -1) when there is none."""
        return self._replica.state.epochs.end_offset(epoch, self._replica.state.written_end)

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
        replica = self._replica

        def answer(result: AppendResult) -> None:
            error = None if result.error is ErrorCode.NONE else BrokerError(result.error, result.message or "")
            done(error, replica.state.written_end)

        if replica.is_closed:
            done(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is closed"), replica.state.written_end)
            return
        effects = replica.core.following.append_fetched(
            records, leader_epoch, high_watermark, log_start_offset, answer, now_ms=replica.clock_ms()
        )
        self._runner.run(effects)

    def truncate(self, offset: int, done: Callable[[Lost | None], None]) -> None:
        """
        Cut off `offset` and what lies behind; `done` gets what that was, once it is gone from the disk too.

        None when there was nothing. A log that cannot be cut goes offline, and the next append says so.
        """
        replica = self._replica

        def cut() -> None:
            state, log, now_ms = replica.state, replica.log, replica.clock_ms()
            if replica.is_closed or state.is_leader or offset >= state.written_end:
                if not state.is_leader:
                    state.epochs.truncate(offset)  # one in which this replica led and wrote nothing
                done(None)
                return
            try:
                inside = offset >= log.start_offset
                job = log.prepare_truncation(offset, now_ms) if inside else log.prepare_restart(offset, now_ms)
            except OSError as error:
                replica.go_offline(f"the log could not be cut at {offset}: {error}")
                done(None)
                return
            self._cut(job, partial(done, replica.core.following.truncate(job.end_offset)))

        self._work.when_quiet(cut)

    def restart_at(self, offset: int, done: Callable[[], None] = lambda: None) -> None:
        """Drop the whole log, which lies below the leader's, and begin again at `offset`; `done` as in `truncate`."""
        replica = self._replica

        def restart() -> None:
            if replica.is_closed or replica.state.is_leader:
                done()
                return
            job = replica.log.prepare_restart(offset, replica.clock_ms())
            replica.core.following.restart_at(offset)
            self._cut(job, done)

        self._work.when_quiet(restart)

    def left_behind(self) -> Lost | None:
        """Say what was acknowledged and may be lost if this replica goes now."""
        return self._replica.core.commits.left_behind()

    def _cut(self, job: TruncationJob, done: Callable[[], None]) -> None:
        replica = self._replica
        epochs, watermark = replica.state.epochs.starts, replica.state.high_watermark
        lower_checkpoints = self._lower_checkpoints(replica)

        def run() -> None:
            # First: a recovery point behind the end would keep recovery from checking what is written there next.
            lower_checkpoints()
            job.run(epochs, watermark)

        def cut(error: BaseException | None) -> None:
            if error is None:
                replica.log.commit_truncation(job)
                self._runner.run(replica.core.following.truncated(job.producers, job.ending))
            else:
                if not isinstance(error, TruncationCancelledError):
                    replica.storage_errors += 1
                    replica.go_offline(f"the log could not be cut: {error}")
                self._runner.run(replica.core.following.truncation_ended())
            done()

        replica.pool.submit(run, cut)
