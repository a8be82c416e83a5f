"""
What must not meet in one log: writes, syncs of sealed segments, a compaction, and a truncation.
"""

from collections import deque
from collections.abc import Callable

from log_broker.server.partitions.replica import Replica
from log_broker.server.partitions.runner import EffectRunner
from log_broker.storage.compaction import CompactionJob


class ExclusiveWork:
    """The work under way that finds segments by name, and what waits until there is none."""

    def __init__(self, replica: Replica, runner: EffectRunner) -> None:
        self.compaction: CompactionJob | None = None  # under way
        self.sealed_syncs = 0  # under way
        self._replica = replica
        self._runner = runner
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_free(self) -> bool:
        """Whether neither a compaction nor a sync of sealed segments is under way."""
        return self.compaction is None and not self.sealed_syncs

    @property
    def may_begin(self) -> bool:
        """Whether work may begin that must not meet a truncation."""
        replica = self._replica
        return not (replica.is_closed or self._waiting or replica.log.truncation is not None)

    def when_quiet(self, action: Callable[[], None]) -> None:
        """Run `action` when nothing is being written, synced or compacted; nothing new begins before."""
        self._waiting.append(action)
        self.ended()

    def ended(self) -> None:
        """Run what waits, if there is nothing under way any more; to be called whenever some work has ended."""
        waiting = self._waiting
        if waiting:
            self.cancel_compaction()
        while waiting and self.is_free and not self._runner.is_running and self._replica.core.writes.is_idle:
            waiting.popleft()()
        self._runner.on_settled = self.ended if waiting else None

    def cancel_compaction(self) -> None:
        """Have a compaction under way stop and touch nothing more by name."""
        if self.compaction is not None:
            self.compaction.cancel()

    def cancel_jobs(self) -> None:
        """Have a compaction, a write and a truncation under way touch nothing more by name."""
        self.cancel_compaction()
        if self._runner.job is not None:
            self._runner.job.cancel()
        if self._replica.log.truncation is not None:
            self._replica.log.truncation.cancel()
