"""
How a replica's log is kept: what retention lets go of, and syncs of segments that no append will sync.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.partitions.exclusive_work import ExclusiveWork
from log_broker.server.partitions.replica import Replica
from log_broker.storage.append_job import SealedSync

_log = logging.getLogger(__name__)


class AtRisk(NamedTuple):
    """
    What of one partition a power cut would take although it is acknowledged: `records` from `first_offset` on.

    `age_ms` is that of the oldest, at the most.
    """

    first_offset: int
    records: int
    bytes: int
    age_ms: int


class LogKeeping:
    """What the log manager has done to a log in the background, and DeleteRecords at once."""

    def __init__(self, replica: Replica, work: ExclusiveWork) -> None:
        self._replica = replica
        self._work = work

    def delete_records(self, before_offset: int) -> int:
        """
        Make `before_offset` the first readable offset (-1: the high watermark) and return the new log start.

        Raises BrokerError(OFFSET_OUT_OF_RANGE) beyond the high watermark. Segments go with the next retention pass.
        """
        state = self._replica.state
        if not state.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica follows")
        offset = state.high_watermark if before_offset == -1 else before_offset
        if offset < 0 or offset > state.high_watermark:
            message = f"{before_offset} lies beyond the high watermark {state.high_watermark}"
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        state.advance_log_start(offset)
        return state.log_start_offset

    def enforce_retention(self, now_ms: int) -> int:
        """Let go of what retention no longer keeps; return the number of segments removed. Raises OSError."""
        replica = self._replica
        if replica.is_closed or self._work.compaction is not None or replica.log.truncation is not None:
            return 0
        state, log, writes = replica.state, replica.log, replica.core.writes
        by_config = "delete" in state.config.cleanup_policy
        if by_config and writes.is_idle and state.offline_reason is None and log.active_expired(now_ms):
            log.roll_active(writes.producer_rows, now_ms)
        count = log.expired_segments(
            now_ms, log_start_offset=state.log_start_offset, high_watermark=state.high_watermark, by_config=by_config
        )
        retired: list[Path] = []
        try:
            for _ in range(count):
                retired += log.remove_first()
        finally:
            if retired:
                state.advance_log_start(log.start_offset)
                replica.loop.call_later(state.config.file_delete_delay_ms / 1000, self._remove_files, retired)
        return count

    def _remove_files(self, paths: Sequence[Path]) -> None:
        replica = self._replica
        if replica.is_closed:
            return  # the next start removes them, or the whole directory goes

        def remove() -> None:
            for path in paths:
                replica.files.remove(path)

        replica.pool.submit(remove, self._removed)

    def _removed(self, error: BaseException | None) -> None:
        replica = self._replica
        if error is not None and not replica.is_closed:
            _log.error("files that left %s-%d could not be removed: %s", replica.topic, replica.partition, error)

    def at_risk(self) -> AtRisk:
        """Say what a power cut would take now; what is being synced before anyone is told of it does not count."""
        replica = self._replica
        first, end = max(replica.state.synced_end, replica.log.recovery_point), replica.state.written_end
        since_ms = replica.core.writes.unsynced_since_ms
        if first >= end or since_ms is None:
            return AtRisk(end, 0, 0, 0)
        age_ms = max(replica.clock_ms() - since_ms, 0)
        return AtRisk(first, end - first, replica.log.unsynced_bytes, age_ms)

    def expire_producers(self, now_ms: int, *, after_ms: int) -> int:
        """Forget producers that have been silent for so long; return how many."""
        replica = self._replica
        return replica.state.producers.expire(now_ms - after_ms) if replica.core.writes.is_idle else 0

    def sync_sealed(self) -> None:
        """Bring sealed segments that no append will sync to the disk, in a pool thread."""
        replica = self._replica
        may_begin = self._work.may_begin and replica.state.offline_reason is None
        sync = replica.log.sealed_sync() if may_begin else None
        if sync is not None:
            self._work.sealed_syncs += 1
            replica.pool.submit(sync.run, partial(self._sealed_synced, sync))

    def _sealed_synced(self, sync: SealedSync, error: BaseException | None) -> None:
        replica = self._replica
        self._work.sealed_syncs -= 1
        if error is None:
            replica.log.sealed_synced(sync)
        elif not replica.is_closed:
            _log.error("syncing %s-%d failed: %s", replica.topic, replica.partition, error)
            replica.storage_errors += 1
            # A second try would succeed without these bytes being on the disk.
            replica.go_offline(f"a sync failed: {error}")
        self._work.ended()
