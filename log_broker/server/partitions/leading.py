"""
What a leader does for its followers: reads for them, takes note of what they hold, repairs what they were sent damaged.
"""

import logging
from collections.abc import Callable, Mapping

from log_broker.core.partition.replication import Follower
from log_broker.errors import ErrorCode
from log_broker.server.partitions.exclusive_work import ExclusiveWork
from log_broker.server.partitions.readers import (
    Cancel,
    ReplicaRead,
    ReplicaWaiters,
    check_leader_epoch,
    read_for_replica,
)
from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.runner import EffectRunner
from log_broker.storage.damage import intact_part, replace_batch

_log = logging.getLogger(__name__)


class LeadingReplica:
    """A partition as those see it that follow it here; a `core.fetch.replica_session.LedLog`."""

    def __init__(
        self, replica: Replica, runner: EffectRunner, work: ExclusiveWork, follower_waiters: ReplicaWaiters
    ) -> None:
        self._replica = replica
        self._runner = runner
        self._work = work
        self._follower_waiters = follower_waiters

    @property
    def high_watermark(self) -> int:
        return self._replica.state.high_watermark

    @property
    def log_start_offset(self) -> int:
        return self._replica.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The end of what is written: what followers may fetch."""
        return self._replica.state.written_end

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas as this leader knows them; empty for a follower."""
        replica = self._replica
        leading = replica.state.leading
        if leading is not None:
            return leading.isr
        return (replica.membership.node_id,) if replica.state.is_leader else ()

    @property
    def partition_epoch(self) -> int:
        """That of the state this leader goes by; -1 for a follower and for a leader that is the only replica."""
        leading = self._replica.state.leading
        return -1 if leading is None else leading.partition_epoch

    @property
    def followers(self) -> Mapping[int, Follower]:
        """Those that follow this leader, by their node."""
        leading = self._replica.state.leading
        return {} if leading is None else leading.followers

    @property
    def awaits_watermark(self) -> bool:
        """Whether this leader's high watermark is still that of its time as a follower: more is committed perhaps."""
        state = self._replica.state
        return state.leading is not None and state.high_watermark < state.leading.epoch_start

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """See `readers.check_leader_epoch`."""
        return check_leader_epoch(self._replica.state, epoch)

    def read_replica(
        self, offset: int, max_bytes: int, last_fetched_epoch: int, *, min_one: bool = True
    ) -> ReplicaRead:
        """
        Read for a follower, up to the end of the log.

        A follower whose log diverges is told where to cut it and gets no records. OFFSET_OUT_OF_RANGE outside the log,
        NOT_LEADER_OR_FOLLOWER from a follower.
        """
        replica = self._replica
        result = read_for_replica(
            replica.state,
            replica.log,
            offset,
            max_bytes,
            last_fetched_epoch,
            min_one=min_one,
            trusted_from=replica.trusted_from,
        )
        if result.damaged_at >= 0:
            replica.on_damaged(result.damaged_at)
        if result.error is ErrorCode.KAFKA_STORAGE_ERROR:
            replica.storage_errors += 1
        return result

    def suspect(self, offset: int) -> None:
        """A follower was sent what is at `offset` and asks for it again: see whether it is damaged."""
        replica = self._replica
        try:
            data = replica.log.read(offset, 0, replica.state.written_end, at_least_one=True)
        except OSError as failure:
            _log.error("reading %s-%d failed: %s", replica.topic, replica.partition, failure)
            return
        if data and not intact_part(data).size:
            replica.on_damaged(offset)

    def patch(self, offset: int, batch: memoryview, done: Callable[[BaseException | None], None]) -> bool:
        """
        Put an intact copy in the place of the damaged batch that holds `offset`; `done` once it is on the disk.

        False, and nothing is done, while the log is being changed otherwise or where the copy is not of that batch.
        """
        replica = self._replica
        is_changing = self._work.compaction is not None or self._runner.job is not None
        if replica.is_closed or is_changing or replica.log.truncation is not None:
            return False
        try:
            segment = replace_batch(replica.log, offset, batch)
        except OSError as failure:
            done(failure)
            return True
        if segment is not None:
            replica.pool.submit(segment.file.sync, done)
        return segment is not None

    def follower_fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """
        Take note that a replica holds everything before `fetch_offset`.

        To be called only when `read_replica` has found neither an error nor that the logs diverge.
        """
        replica = self._replica
        self._runner.run(
            replica.core.roles.follower_fetched(
                replica_id, broker_epoch, fetch_offset, log_start_offset, steady_ms=replica.steady_ms()
            )
        )

    def on_appended(
        self, offset: int, callback: Callable[[], None], *, known_high_watermark: int | None = None
    ) -> Cancel:
        """
        Call `callback` once when the log has grown beyond `offset` or this replica leads no more.

        With `known_high_watermark` also when that has moved on.
        """
        return self._follower_waiters.add(offset, callback, known_high_watermark=known_high_watermark)
