"""
Where each leader epoch of a partition starts.

A reader that last saw epoch e asks for its end offset: the start of the next epoch, or the log's end for the current
one. Where that lies below its own position, its log has diverged there (KIP-101, KIP-320).
"""

from collections.abc import Iterable

UNKNOWN_EPOCH = -1
UNKNOWN_OFFSET = -1


class LeaderEpochs:
    """The start offset of each epoch, both strictly rising. `current` is the epoch that the next batch carries."""

    def __init__(self, starts: Iterable[tuple[int, int]] = (), *, current: int = 0) -> None:
        self._starts: list[tuple[int, int]] = []
        self.changes = 0  # since it was made: whoever keeps a copy sees by it that the copy is old
        for epoch, offset in starts:
            self.begin(epoch, offset)
        self.current = max(current, self.latest)

    @property
    def starts(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), oldest first."""
        return tuple(self._starts)

    @property
    def latest(self) -> int:
        """The epoch of the last batch in the log, -1 when there is none."""
        return self._starts[-1][0] if self._starts else UNKNOWN_EPOCH

    def begin(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` starts at `start_offset`; say whether that was new."""
        if self._starts and epoch <= self._starts[-1][0]:
            return False
        while self._starts and self._starts[-1][1] >= start_offset:
            self._starts.pop()  # an epoch in which nothing was written
        self._starts.append((epoch, start_offset))
        self.changes += 1
        return True

    def advance_start(self, log_start_offset: int) -> None:
        """Drop epochs that end before the log starts; the one that holds the start keeps its number."""
        while len(self._starts) > 1 and self._starts[1][1] <= log_start_offset:
            self._starts.pop(0)
        if self._starts and self._starts[0][1] < log_start_offset:
            self._starts[0] = (self._starts[0][0], log_start_offset)

    def truncate(self, end_offset: int) -> None:
        """Drop epochs that start at or behind the end of the log."""
        while self._starts and self._starts[-1][1] >= end_offset:
            self._starts.pop()
            self.changes += 1

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which the record at `offset` was written; the current one when that is not known."""
        return next((epoch for epoch, start in reversed(self._starts) if start <= offset), self.current)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """
        Return (largest known epoch up to `epoch`, its end offset), or (-1, -1) when there is none.

        That is the answer of OffsetForLeaderEpoch. An epoch from before all that are known ended where those begin.
        """
        if epoch == self.current:
            return epoch, log_end_offset
        if epoch > self.current or epoch < 0:
            return UNKNOWN_EPOCH, UNKNOWN_OFFSET
        if not self._starts:
            return epoch, log_end_offset  # nothing is left of it, and nothing was written since
        if epoch < self._starts[0][0]:
            return epoch, self._starts[0][1]
        found = UNKNOWN_EPOCH
        for known, start in self._starts:
            if known > epoch:
                return found, start
            found = known
        return found, log_end_offset
