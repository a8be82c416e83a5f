"""
The log of one partition on a file system: segments in offset order, the last one growing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from log_broker.core.partition.producers import AbortedTransaction, ProducerRow
from log_broker.records.batch import NO_TIMESTAMP, BatchHeader
from log_broker.storage.append_job import SealedSync
from log_broker.storage.compaction import UNBOUNDED_MS, ClosedSegment, CompactionLimits
from log_broker.storage.files import FileSystem
from log_broker.storage.log_appender import LogAppender, LogLimits
from log_broker.storage.log_reader import LogReader
from log_broker.storage.segment import Segment
from log_broker.storage.segments import Segments
from log_broker.storage.transaction_index import AbortedTransactions
from log_broker.storage.truncation import TruncationJob
from log_broker.storage.unsynced import Unsynced


class PartitionLog:
    """
    Segments, read and grown. Every method is for one thread; see `AppendJob` for the exception.

    `read`, `cold_part` and `bytes_between` are those of `LogReader`; `prepare`, `commit` and `abandon` are those of
    `LogAppender`.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        limits: LogLimits,
        *,
        segments: list[Segment],
        end_offset: int,
        recovery_point: int,
        may_have_gaps: bool = False,
        missing: Sequence[tuple[int, int]] = (),
        metadata: bytes | None = None,
    ) -> None:
        """
        `may_have_gaps` says that recovery was told to expect offsets missing in the active segment.

        `missing` are the ranges, [first, end), that recovery found to be lost. `metadata` is what partition.metadata
        is to say, see `Unsynced`.
        """
        self.directory = directory
        self.missing = missing
        self.truncation: TruncationJob | None = None  # under way
        self.aborted = AbortedTransactions(files, directory)
        self._files = files
        self._segments = Segments(segments, end_offset, may_have_gaps=may_have_gaps)
        self._unsynced = Unsynced(directory, recovery_point, is_on_disk=segments[-1].size > 0, metadata=metadata)
        self._reader = LogReader(files, self._segments, self._unsynced)
        self._appender = LogAppender(
            files,
            directory,
            limits,
            segments=self._segments,
            unsynced=self._unsynced,
            reader=self._reader,
            aborted=self.aborted,
        )
        self.segments: Sequence[Segment] = self._segments.items
        self.read, self.find = self._reader.read, self._reader.find
        self.bytes_between = self._reader.bytes_between
        self.cold_part = self._reader.cold_part
        self.prepare, self.commit = self._appender.prepare, self._appender.commit
        self.abandon = self._appender.abandon

    @property
    def limits(self) -> LogLimits:
        return self._appender.limits

    @limits.setter
    def limits(self, limits: LogLimits) -> None:
        self._appender.limits = limits

    @property
    def start_offset(self) -> int:
        """The base of the first segment; the partition's log start may lie behind it."""
        return self._segments.bases[0]

    @property
    def end_offset(self) -> int:
        return self._segments.end_offset

    @property
    def recovery_point(self) -> int:
        """All before it survives a power cut."""
        return self._unsynced.recovery_point

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def unsynced_bytes(self) -> int:
        return self._unsynced.size_bytes

    def sealed_sync(self) -> SealedSync | None:
        """
        Return what brings the sealed segments that no sync has covered to the disk, None when there are none.

        It runs beside appends: topics that do not sync each write leave their full segments to it.
        """
        return self._unsynced.sealed_sync(self._files, self._segments.active)

    def sealed_synced(self, sync: SealedSync) -> None:
        """Take note that `sync` has run."""
        if self._appender.job is None:  # else it may be using the same files; the next round finds them synced
            self._reader.release(self._unsynced.sealed_synced(sync, self._segments.active))

    # What recovery reads and puts right.

    def headers_from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """See `Segments.headers_from`."""
        return self._segments.headers_from(offset)

    def written_ms(self, offset: int) -> int:
        """When the segment that holds `offset` was last written, by this machine's clock; raises OSError."""
        return self._segments.holding(offset).files.written_ms

    def set_epoch(self, offset: int, epoch: int) -> None:
        """Write the leader epoch of the batch at `offset`, on the disk too; raises OSError."""
        self._segments.set_epoch(offset, epoch)

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """Take in a transaction whose abort marker is the latest in the log."""
        self.aborted.add(self._segments.holding(transaction.last_offset).base_offset, transaction)

    def save_aborted(self, from_offset: int) -> None:
        """Write what recovery found behind `from_offset` in segments that grow no more; raises OSError."""
        for base_offset in self._segments.bases[self._segments.at(from_offset) : -1]:
            self.aborted.save(base_offset)

    # Truncation.

    def prepare_truncation(self, offset: int, now_ms: int) -> TruncationJob:
        """
        Let go of `offset` and all behind it, for readers at once; `offset` lies in the log, and nothing else runs.

        A batch that holds `offset` goes as a whole. Raises OSError.
        """
        assert self._appender.job is None, "nothing is being written to a log that is cut"
        segments = self._segments
        at = segments.at(offset)
        end_offset = segments.items[at].cut(offset)
        removed = segments.replace(at + 1, len(segments.items), ())
        grows_again = bool(removed) and not segments.may_have_gaps
        return self._shortened(removed, end_offset, now_ms, grows_again=grows_again, is_restart=False)

    def prepare_restart(self, offset: int, now_ms: int) -> TruncationJob:
        """Let go of everything, to begin again at `offset`; otherwise as `prepare_truncation`."""
        assert self._appender.job is None, "nothing is being written to a log that is cut"
        fresh = self._appender.new_segment(offset, now_ms)
        removed = self._segments.replace(0, len(self._segments.items), (fresh,))
        return self._shortened(removed, offset, now_ms, grows_again=False, is_restart=True)

    def _shortened(
        self, removed: Sequence[Segment], end_offset: int, now_ms: int, *, grows_again: bool, is_restart: bool
    ) -> TruncationJob:
        segments, unsynced = self._segments, self._unsynced
        for segment in removed:
            segment.files.close()
            unsynced.segments.pop(segment, None)
        self._reader.forget((*removed, segments.active))
        segments.end_offset = end_offset
        unsynced.recovery_point = min(unsynced.recovery_point, end_offset)
        base = segments.bases[-1]
        self.truncation = job = TruncationJob(
            self._files,
            self.directory,
            kept=[(segment.base_offset, segment.size) for segment in segments.items],
            removed=[segment.base_offset for segment in removed if segment.base_offset != base],
            end_offset=end_offset,
            aborted=self.aborted.cut(base, end_offset),
            grows_again=grows_again,
            is_restart=is_restart,
            now_ms=now_ms,
            metadata=unsynced.metadata,
        )
        return job

    def commit_truncation(self, job: TruncationJob) -> None:
        """Take note that `job` has run."""
        assert job is self.truncation
        self.truncation = None
        self._unsynced.metadata = None
        self._segments.may_have_gaps = self._segments.may_have_gaps or job.mark_gaps
        self._unsynced.shortened(self._segments.active, self._segments.end_offset)

    # Retention.

    def expired_segments(self, now_ms: int, *, log_start_offset: int, high_watermark: int, by_config: bool) -> int:
        """
        Return how many segments from the front are let go.

        A segment goes when the log start has passed it and, with `by_config`, when its newest record is older than
        retention.ms (see `Segment.largest_timestamp`) or when the rest alone holds retention.bytes. The active one
        stays. Raises OSError.
        """
        excess = self.size_bytes - self.limits.retention_bytes if self.limits.retention_bytes >= 0 else -1
        count = 0
        for segment, end in self._segments.sealed():
            if end > high_watermark or segment in self._unsynced.segments:
                break
            too_old = by_config and 0 <= self.limits.retention_ms < now_ms - segment.largest_timestamp
            too_much = by_config and excess >= segment.size
            if not (too_old or too_much or end <= log_start_offset):
                break
            excess -= segment.size
            count += 1
        return count

    def remove_first(self) -> list[Path]:
        """Take the first segment out of the log; return its files, which can be removed. Raises OSError: it stays."""
        segment = self.segments[0]
        retired = segment.files.retire()
        self._reader.forget(self._segments.replace(0, 1, ()))
        return retired + self.aborted.forget(segment.base_offset)

    def roll_active(self, producer_rows: Callable[[int], Iterable[ProducerRow]], now_ms: int) -> bool:
        """
        Seal the active segment even though it is not full, so that retention can take it; say whether that was done.

        The new file is on the disk before anything can be removed: its name alone then says where offsets go on.
        Raises OSError.
        """
        if self._appender.job is not None or not self._segments.active.size:
            return False
        segment = self._appender.roll(self.end_offset, producer_rows, now_ms)
        segment.file.sync()
        self._files.sync_directory(self.directory)
        return True

    def active_overdue(self, now_ms: int) -> bool:
        """Whether the active segment has been open for longer than its records may stay uncompacted."""
        active = self._segments.active
        return bool(active.size) and now_ms - active.created_ms > self.limits.segment_ms_max

    def active_expired(self, now_ms: int) -> bool:
        """Whether even the newest record is older than retention.ms; raises OSError."""
        active = self._segments.active
        return bool(active.size) and 0 <= self.limits.retention_ms < now_ms - active.largest_timestamp

    # Compaction.

    def closed_segments(self, high_watermark: int) -> list[tuple[Segment, int]]:
        """List (segment, its end) of those from the front that are on the disk and below the high watermark."""
        closed: list[tuple[Segment, int]] = []
        for segment, end in self._segments.sealed():
            if segment in self._unsynced.segments or end > high_watermark:
                break
            closed.append((segment, end))
        return closed

    def facts_of(
        self, closed: Sequence[tuple[Segment, int]], *, dirty_from: int, limits: CompactionLimits
    ) -> list[ClosedSegment]:
        """Describe segments to the planning of a compaction; the dirty ones with what its limits ask for."""
        facts: list[ClosedSegment] = []
        for segment, end in closed:
            newest = first = NO_TIMESTAMP
            if end > dirty_from:
                if limits.min_compaction_lag_ms:
                    newest = segment.largest_timestamp
                if limits.max_compaction_lag_ms < UNBOUNDED_MS:
                    first = segment.first_batch_timestamp()
                    if first < 0:
                        first = segment.files.written_ms
                self._reader.release((segment,))
            facts.append(ClosedSegment(segment.base_offset, end, segment.size, newest, first))
        return facts

    def replace(self, sources: Sequence[Segment], segment: Segment) -> None:
        """Let `segment` stand where `sources`, neighbours, stood; readers go on in it."""
        first = self._segments.bases.index(sources[0].base_offset)
        assert self.segments[first : first + len(sources)] == list(sources), "the sources are in the log"
        assert first + len(sources) < len(self.segments), "the active segment is never replaced"
        for source in sources:
            source.files.close()
        self._reader.forget(self._segments.replace(first, len(sources), (segment,)))

    # The end of it.

    def close(self, producer_rows: Iterable[ProducerRow]) -> None:
        """Sync everything and write what makes the next start quick; raises OSError."""
        self._unsynced.sync(self._files)
        self._reader.release(self._unsynced.all_synced(self.end_offset))
        active = self._segments.active
        if active.size:
            active.save_indexes()
            self.aborted.save(active.base_offset)
        if self.end_offset:
            self._appender.save_producers(self.end_offset, producer_rows)
        self.close_files()

    def close_files(self) -> None:
        """Give the file descriptors back and leave everything as it is."""
        for segment in self.segments:
            segment.files.close()
