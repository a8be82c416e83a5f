"""
The compaction of one log: planned and begun, then rewritten by a thread, installed piece by piece, ended.
"""

from log_broker.server.partitions.exclusive_work import ExclusiveWork
from log_broker.server.partitions.replica import Replica
from log_broker.storage.compaction import CompactionJob, CompactionPlan, Rewritten, plan_compaction
from log_broker.storage.segment_swap import complete, stage


class LogCompaction:
    """What the compactor asks of a log."""

    def __init__(self, replica: Replica, work: ExclusiveWork) -> None:
        self._replica = replica
        self._work = work

    def plan(self, compacted_to: int, now_ms: int) -> CompactionPlan | None:
        """
        Return what can be compacted, given how far that was done before; None when that is nothing. Raises OSError.

        An active segment that has been open for too long is closed first, so that an idle topic is compacted too.
        """
        replica = self._replica
        state, log, writes, config = replica.state, replica.log, replica.core.writes, replica.state.config
        if not (config.is_compacted and self._work.is_free and self._work.may_begin):
            return None
        if writes.is_idle and state.offline_reason is None and log.active_overdue(now_ms):
            log.roll_active(writes.producer_rows, now_ms)
        segments = log.closed_segments(min(state.high_watermark, state.last_stable_offset))
        # A log that was cut below the point to which it had been compacted is begun again.
        known = bool(segments) and state.log_start_offset <= compacted_to <= segments[-1][1]
        first_dirty = compacted_to if known else state.log_start_offset
        closed = log.facts_of(segments, dirty_from=first_dirty, limits=config)
        return plan_compaction(closed, first_dirty_offset=first_dirty, limits=config, now_ms=now_ms)

    def begin(self, plan: CompactionPlan, *, map_bytes_max: int, now_ms: int) -> CompactionJob:
        """Return the work of one pass; until `end` no segment leaves this log in another way."""
        assert self._work.compaction is None, "one compaction at a time"
        replica = self._replica
        log, producers = replica.log, replica.state.producers
        self._work.compaction = job = CompactionJob(
            replica.files,
            log.directory,
            log.closed_segments(plan.end_offset),
            log.segments[-1],
            plan,
            limits=replica.state.config,
            sequences_at=frozenset(row.batch.last_offset for row in producers.rows()),
            map_bytes_max=map_bytes_max,
            now_ms=now_ms,
            aborted={segment.base_offset: log.aborted.of(segment.base_offset) for segment in log.segments},
            last_epochs={pid: entry.epoch for pid, entry in producers.all().items() if not entry.batches},
        )
        return job

    def stage(self, rewritten: Rewritten) -> None:
        """Have a rewritten segment ready to be installed; raises OSError."""
        stage(self._replica.files, self._replica.log, rewritten)

    def install(self, rewritten: Rewritten) -> None:
        """Let a staged segment take its place; raises OSError."""
        try:
            complete(self._replica.files, self._replica.log, rewritten)
        except OSError as error:
            self._replica.go_offline(f"a compacted segment could not take its place: {error}")
            raise

    def cancel(self) -> None:
        """Have a compaction under way stop and touch nothing more by name."""
        self._work.cancel_compaction()

    def end(self) -> None:
        """Let other work begin."""
        self._work.compaction = None
        self._work.ended()
