"""
Cutting the end off a log, or all of it: what a follower does where its leader's log went another way.

A cut happens in three steps, as an append does. `PartitionLog.prepare_truncation` makes the log shorter for everyone
who reads it, the job's `run` does the same to the disk in another thread, and `commit_truncation` takes the result. In
whatever step the power goes, the next start finds a log that is whole: the old one, the cut one, or one between:

1. snapshots of producers that speak of what goes away are removed;
2. segments are removed from the last one on, each durably before the next, so that there is never a gap;
3. the segment that is cut loses its index files, its entries of aborted transactions, and its end;
4. then only the epochs are written: until then every batch that is still there finds its own in the file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from log_broker.core.partition.producers import ProducerStates
from log_broker.core.partition.transactions import Ending
from log_broker.records.batch import BatchHeader
from log_broker.storage.checkpoints import GAPS_FILE, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, encode_epochs
from log_broker.storage.files import FileSystem
from log_broker.storage.producer_replay import producers_to_replay_from, replay_producers, snapshot_offsets
from log_broker.storage.segment import has_gaps, scan
from log_broker.storage.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)


class TruncationCancelledError(Exception):
    """The log is being deleted, and nothing of its name may be touched any more."""


class TruncationJob:
    """One cut under way. `run` may be called from any thread; everything else is done before and after it."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        *,
        kept: Sequence[tuple[int, int]],
        removed: Sequence[int],
        end_offset: int,
        aborted: bytes,
        grows_again: bool,
        is_restart: bool,
        now_ms: int,
        metadata: bytes | None,
    ) -> None:
        """
        `kept` are the segments that stay, (base offset, size), of which the last is cut to that size and grows again,
        `removed` the bases of those that go. `aborted` is what the last one's index of aborted transactions is to hold;
        with `grows_again` that one had been sealed, and if compaction has left gaps in it, recovery is told. With
        `is_restart` nothing that was known of producers holds any more. `metadata` is what partition.metadata has not
        been synced with yet.
        """
        self.directory = directory
        self.end_offset = end_offset
        self.producers = ProducerStates()
        self.ending: list[Ending] = []
        self._files = files
        self._kept = kept
        self._removed = removed
        self._aborted = aborted
        self.mark_gaps = False  # set by `run`
        self._grows_again = grows_again
        self._is_restart = is_restart
        self._now_ms = now_ms
        self._metadata = metadata
        self._step = Lock()
        self._cancelled = False

    @property
    def start_offset(self) -> int:
        return self._kept[0][0]

    def cancel(self) -> None:
        """Touch nothing more by name; returns once no step is under way."""
        with self._step:
            self._cancelled = True

    def run(self, epochs: Sequence[tuple[int, int]], high_watermark: int) -> None:
        """Cut, then find what is known of producers after that; raises OSError or TruncationCancelledError."""
        if self._metadata is not None:
            with self._unless_cancelled():
                self._files.replace(self.directory / PARTITION_METADATA_FILE, self._metadata)
        if self._grows_again:
            with self._unless_cancelled():
                self._note_gaps()
        sound_to = -1 if self._is_restart else self.end_offset
        stale = [offset for offset in snapshot_offsets(self._files, self.directory) if offset > sound_to]
        if stale:
            self._remove(file_name(offset, SNAPSHOT_SUFFIX) for offset in stale)
        suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)
        for base in sorted(self._removed, reverse=True):
            self._remove(file_name(base, suffix) for suffix in suffixes)
        base, size = self._kept[-1]
        self._remove(file_name(base, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        with self._unless_cancelled():
            path = self.directory / file_name(base, TRANSACTION_INDEX_SUFFIX)
            if self._aborted:
                self._files.replace(path, self._aborted)
            else:
                self._files.remove(path)
        with self._unless_cancelled():
            file = self._files.open(self.directory / file_name(base, LOG_SUFFIX))
            try:
                file.truncate(size)
                file.sync()
            finally:
                file.close()
            self._files.sync_directory(self.directory)
        with self._unless_cancelled():
            self._files.replace(self.directory / LEADER_EPOCH_FILE, encode_epochs(epochs))
        snapshot = producers_to_replay_from(self._files, self, high_watermark)
        self.producers, self.ending, _ = replay_producers(
            self.headers_from(snapshot[0]),
            snapshot[1],
            high_watermark,
            written_ms=self.written_ms,
            now_ms=self._now_ms,
        )

    def headers_from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Read by files of its own, which nobody closes meanwhile."""
        for at, (base, size) in enumerate(self._kept):
            behind = at + 1 < len(self._kept) and self._kept[at + 1][0] <= offset
            if behind or not size:
                continue
            with self._unless_cancelled():
                file = self._files.open(self.directory / file_name(base, LOG_SUFFIX))
            try:
                for position, header in scan(file, 0, size):
                    if header.last_offset >= offset:
                        yield header, file.read_at(position, header.size) if header.is_control else b""
            finally:
                file.close()

    def written_ms(self, offset: int) -> int:
        """Its producers are taken for heard now: that the files were changed hides when they were written."""
        return self._now_ms

    def _note_gaps(self) -> None:
        base, size = self._kept[-1]
        file = self._files.open(self.directory / file_name(base, LOG_SUFFIX))
        try:
            self.mark_gaps = has_gaps(file, base, size, self.end_offset)
        finally:
            file.close()
        if self.mark_gaps:
            self._files.replace(self.directory / GAPS_FILE, b"")

    def _remove(self, names: Iterator[str]) -> None:
        with self._unless_cancelled():
            for name in names:
                self._files.remove(self.directory / name)
            self._files.sync_directory(self.directory)

    @contextmanager
    def _unless_cancelled(self) -> Iterator[None]:
        """A step, which `cancel` waits for."""
        with self._step:
            if self._cancelled:
                raise TruncationCancelledError
            yield
