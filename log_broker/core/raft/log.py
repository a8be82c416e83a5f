"""
The metadata log as Raft sees it: a snapshot, the entries behind it, and where each epoch starts.

The entries since the last snapshot are kept in memory, which snapshots bound; so answering a follower needs no disk.
An entry is one record, so its index is its Kafka offset. All ends are exclusive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from log_broker.core.raft.voters import VoterSet


class EntryKind(IntEnum):
    """What an entry is for: the state machine above gets DATA only."""

    DATA = 0
    LEADER_CHANGE = 1  # the first entry of every epoch: committing it commits all before it
    VOTERS = 2


class Entry(NamedTuple):
    """One entry; `epoch` is the leader's that wrote it."""

    epoch: int
    kind: EntryKind
    data: bytes


class OffsetAndEpoch(NamedTuple):
    """An end of a log: the offset behind its last entry, and that entry's epoch. Names a snapshot, too."""

    offset: int
    epoch: int


LOG_BEGIN = OffsetAndEpoch(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What all entries before `id.offset` amount to: the voters in force, and the state machine's own bytes."""

    id: OffsetAndEpoch
    voters: VoterSet
    data: bytes


class RaftLog:
    """
    Entries from `start_offset` to `end_offset`, at least all those behind the snapshot.

    Always: start_offset <= snapshot's end <= end_offset. `start` is the (offset, epoch) just before the first entry.
    """

    def __init__(self, start: OffsetAndEpoch, entries: Sequence[Entry] = ()) -> None:
        self.start = start
        self._entries: list[Entry] = []
        self._epochs: list[OffsetAndEpoch] = []  # (start offset, epoch) of each epoch in `_entries`, both rising
        self.append(entries)

    @property
    def start_offset(self) -> int:
        return self.start.offset

    @property
    def end_offset(self) -> int:
        return self.start.offset + len(self._entries)

    @property
    def last_epoch(self) -> int:
        return self._entries[-1].epoch if self._entries else self.start.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries, whose epochs never fall."""
        offset = self.end_offset
        epoch = self.last_epoch
        for entry in entries:
            assert entry.epoch >= epoch, f"an entry of epoch {entry.epoch} behind one of epoch {epoch} at {offset}"
            if entry.epoch > epoch or not self._epochs:
                epoch = entry.epoch
                self._epochs.append(OffsetAndEpoch(offset, epoch))
            offset += 1
        self._entries += entries

    def read(self, offset: int, end_offset: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries of a range, as many as `bytes_max` allows but at least one, if there is any."""
        entries = self._entries
        at = end = offset - self.start.offset
        last = end_offset - self.start.offset
        size = 0
        while end < last and (end == at or size + len(entries[end].data) <= bytes_max):
            size += len(entries[end].data)
            end += 1
        return tuple(entries[at:end])

    def between(self, offset: int, end_offset: int) -> tuple[Entry, ...]:
        at = offset - self.start.offset
        assert at >= 0, f"entry {offset} lies before the log, which starts at {self.start.offset}"
        return tuple(self._entries[at : end_offset - self.start.offset])

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the entry at `offset`, which must be one of ours or the one just before them."""
        at = offset - self.start.offset
        assert -1 <= at < len(self._entries), f"no entry {offset} in {self.start.offset} … {self.end_offset}"
        return self.start.epoch if at == -1 else self._entries[at].epoch

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        """
        Return the end of the largest epoch up to `epoch`, None when that lies before the start of the log.

        A follower whose last entry is of `epoch` agrees with this log up to there at most (KIP-595).
        """
        if epoch < self.start.epoch:
            return None
        found = OffsetAndEpoch(self.start.offset, self.start.epoch)
        for start, known in self._epochs:
            if known > epoch:
                return OffsetAndEpoch(start, found.epoch)
            found = OffsetAndEpoch(start, known)
        return self.end

    def truncate(self, end_offset: int) -> None:
        """Drop the entries from `end_offset` on."""
        assert self.start.offset <= end_offset <= self.end_offset
        del self._entries[end_offset - self.start.offset :]
        while self._epochs and self._epochs[-1].offset >= end_offset:
            self._epochs.pop()

    def advance_start(self, offset: int) -> None:
        """Drop the entries before `offset`, which a snapshot holds."""
        if offset <= self.start.offset:
            return
        start = OffsetAndEpoch(offset, self.epoch_at(offset - 1))
        kept = self._entries[offset - self.start.offset :]
        self.start = start
        self._entries = []
        self._epochs = []
        self.append(kept)

    def reset(self, end: OffsetAndEpoch) -> None:
        """Begin again, empty, where a snapshot ends."""
        self.start = end
        self._entries = []
        self._epochs = []
