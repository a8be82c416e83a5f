"""
The log of one partition on a file system: segments in offset order, the last one growing.

An append happens in three steps, so that the middle one may run in another thread: `prepare` picks the segment and the
place in it, the job's `run` writes and syncs, `commit` makes the batches part of the log, or `abandon` cuts off
whatever reached the file. Between `prepare` and the last step readers see the log as it was. One job at a time.
"""

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from log_broker.core.partition.producers import AbortedTransaction, ProducerRow
from log_broker.core.partition.protocol import PendingBatch
from log_broker.records.batch import LEADER_EPOCH_OFFSET, NO_TIMESTAMP, BatchHeader, Buffer
from log_broker.storage.append_job import AppendJob, SealedSync
from log_broker.storage.checkpoints import (
    GAPS_FILE,
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    encode_epochs,
    encode_producers,
)
from log_broker.storage.compaction import UNBOUNDED_MS, ClosedSegment, CompactionLimits
from log_broker.storage.files import FileSystem
from log_broker.storage.producer_replay import snapshot_offsets
from log_broker.storage.segment import (
    SNAPSHOT_SUFFIX,
    Segment,
    SegmentLimits,
    file_name,
    scan,
)
from log_broker.storage.transaction_index import AbortedTransactions
from log_broker.storage.truncation import TruncationJob

SNAPSHOTS_KEPT = 2  # as Kafka: the latest, and the one before in case the latest is damaged
CURSORS_MAX = 64
OPEN_SEALED_MAX = 2  # sealed segments of one partition whose file and indexes stay open for readers


class LogLimits(SegmentLimits, Protocol):
    """The part of a topic's config that storage goes by."""

    @property
    def index_interval_bytes(self) -> int: ...

    @property
    def retention_ms(self) -> int: ...

    @property
    def retention_bytes(self) -> int: ...


class MissingRecordsError(OSError):
    """Offsets that were given out are not in the log, which was never compacted: the disk has lost them."""

    def __init__(self, segment: Segment, first: int, end: int) -> None:
        super().__init__(errno.EIO, f"offsets {first} to {end - 1} are missing", str(segment.path()))


class PartitionLog:
    """Segments, read and grown. Every method is for one thread; see `AppendJob` for the exception."""

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

        `missing` are the ranges, [first, end), that recovery found to be lost. `metadata`, what partition.metadata is
        to say, is on the disk before the next record: no record is ever found without a word of whose it is.
        """
        assert segments, "a log has an active segment"
        self.directory = directory
        self.limits = limits
        self.end_offset = end_offset
        self.recovery_point = recovery_point  # all before it survives a power cut
        self._files = files
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        # Segments with bytes, and directories with names, that no sync has covered yet.
        self._dirty: dict[Segment, int] = {}  # and how much of each was synced when it became so
        self._dirty_directories: dict[Path, None] = {}
        self._is_on_disk = segments[-1].size > 0
        self._job: AppendJob | None = None
        self._may_have_gaps = may_have_gaps
        self.truncation: TruncationJob | None = None  # under way
        self._cursors: dict[int, tuple[Segment, int]] = {}  # where the reader who got the bytes before will go on
        self._opened: dict[Segment, None] = {}
        self.missing = missing
        self._metadata = metadata
        self.aborted = AbortedTransactions(files, directory)

    @property
    def start_offset(self) -> int:
        """The base of the first segment; the partition's log start may lie behind it."""
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def unsynced_bytes(self) -> int:
        return sum(segment.size - synced for segment, synced in self._dirty.items())

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    # Appending.

    def prepare(
        self,
        batches: Sequence[PendingBatch],
        *,
        sync: bool,
        now_ms: int,
        producer_rows: Callable[[int], Iterable[ProducerRow]],
        epochs: Sequence[tuple[int, int]] | None = None,
        gaps: bool = False,
    ) -> AppendJob:
        """
        Plan the write of `batches`, or of as many from the front as go into one segment.

        What the core says of `epochs` and `gaps` is on the disk before them.

        Begins a new segment where one is due, with a snapshot of the producers in front of it. Raises OSError.
        """
        assert self._job is None, "one write at a time"
        taken: list[PendingBatch] = []
        buffers: list[Buffer] = []
        planned_bytes = 0
        for pending in batches:
            if pending.batch is not None:
                size = len(pending.batch)
                active = self._segments[-1]
                if active.is_full_for(
                    planned_bytes + size, pending.last_offset, pending.max_timestamp, now_ms, self.limits
                ):
                    if buffers:
                        break
                    active = self._roll(pending.base_offset, producer_rows, now_ms)
                elif not active.size and planned_bytes and planned_bytes + size > self.limits.segment_bytes:
                    break
                buffers.append(pending.batch)
                planned_bytes += size
            taken.append(pending)
        segment = self._segments[-1] if buffers else None
        if segment is not None:
            segment.written_ms = now_ms
            if not segment.is_open:
                self._note_new_file()
            if segment not in self._dirty:
                self._dirty[segment] = segment.size
        marks: tuple[tuple[Path, bytes], ...] = ()
        if epochs is not None:
            marks = ((self.directory / LEADER_EPOCH_FILE, encode_epochs(epochs)),)
        if gaps and not self._may_have_gaps:
            marks = (*marks, (self.directory / GAPS_FILE, b""))
        if self._metadata is not None and segment is not None:
            marks = ((self.directory / PARTITION_METADATA_FILE, self._metadata), *marks)
        self._job = AppendJob(
            self._files,
            segment=segment,
            batches=taken,
            buffers=buffers,
            sync_files=[dirty.file for dirty in self._dirty] if sync else (),
            directories=list(self._dirty_directories) if sync else (),
            sync=sync,
            marks=marks,
        )
        return self._job

    def commit(self, job: AppendJob) -> None:
        """Take the job's batches into the log."""
        assert job is self._job
        self._job = None
        for path, _ in job.marks:
            if path.name == GAPS_FILE:
                self._may_have_gaps = True
            elif path.name == PARTITION_METADATA_FILE:
                self._metadata = None
        segment = job.segment
        if segment is not None:
            for pending in job.batches:
                if pending.batch is not None:
                    segment.note(len(pending.batch), pending.last_offset, pending.max_timestamp)
                    self.end_offset = pending.last_offset + 1
        if job.synced:
            self._synced()

    def abandon(self, job: AppendJob) -> None:
        """Cut off whatever the failed job wrote; raises OSError when even that fails."""
        assert job is self._job
        self._job = None
        if job.target is not None:
            job.target.truncate(job.position)

    def sealed_sync(self) -> SealedSync | None:
        """
        Return what brings the sealed segments that no sync has covered to the disk, None when there are none.

        It runs beside appends: topics that do not sync each write leave their full segments to it.
        """
        sealed = [segment for segment in self._dirty if segment is not self._segments[-1]]
        return SealedSync(self._files, sealed, list(self._dirty_directories)) if sealed else None

    def sealed_synced(self, sync: SealedSync) -> None:
        """Take note that `sync` has run."""
        if self._job is not None:
            return  # the job may be using the same files; the next round finds them synced
        for segment in sync.segments:
            if self._dirty.pop(segment, None) is not None and segment not in self._opened:
                segment.release()
        # One that became full while the sync ran is not covered by it.
        first_dirty = min((segment.base_offset for segment in self._dirty), default=self._bases[-1])
        self.recovery_point = max(self.recovery_point, first_dirty)

    def _synced(self) -> None:
        for segment in self._dirty:
            if segment is not self._segments[-1] and segment not in self._opened:
                segment.release()
        self._dirty.clear()
        self._dirty_directories.clear()
        self.recovery_point = self.end_offset

    def _note_new_file(self) -> None:
        """The first write may create the file; its name needs a sync of the directory, and that one's of its parent."""
        self._dirty_directories[self.directory] = None
        if not self._is_on_disk:
            self._is_on_disk = True
            self._dirty_directories[self.directory.parent] = None

    def _roll(self, base_offset: int, producer_rows: Callable[[int], Iterable[ProducerRow]], now_ms: int) -> Segment:
        sealed = self._segments[-1]
        sealed.save_indexes()
        # Before the snapshot, behind which recovery does not look for aborted transactions.
        self.aborted.save(sealed.base_offset)
        self.save_producers(base_offset, producer_rows(base_offset))
        if sealed not in self._dirty:
            sealed.release()
        segment = Segment(
            self._files,
            self.directory,
            base_offset,
            size=0,
            index_interval_bytes=self.limits.index_interval_bytes,
            now_ms=now_ms,
        )
        segment.begin_empty()
        self._segments.append(segment)
        self._bases.append(base_offset)
        return segment

    def save_producers(self, offset: int, rows: Iterable[ProducerRow]) -> None:
        """Write the producers as of the batches before `offset`, and drop snapshots that are no longer needed."""
        self._files.replace(self.directory / file_name(offset, SNAPSHOT_SUFFIX), encode_producers(rows), sync=False)
        for old in snapshot_offsets(self._files, self.directory)[:-SNAPSHOTS_KEPT]:
            self._files.remove(self.directory / file_name(old, SNAPSHOT_SUFFIX))

    # Reading.

    def read(self, offset: int, bytes_max: int, end_offset: int, *, at_least_one: bool) -> bytes:
        """
        Return whole batches from the one that holds `offset` up to `end_offset`, from one segment.

        `end_offset` is a batch boundary. Not more than `bytes_max`, unless `at_least_one` asks for a first batch that
        is larger. Raises OSError, MissingRecordsError where nothing is at `offset` although there must be.
        """
        at = max(bisect_right(self._bases, offset) - 1, 0)
        known = self._cursors.get(offset)
        while at < len(self._segments) and self._bases[at] < end_offset:
            segment = self._segments[at]
            start = known[1] if known is not None and known[0] is segment else segment.position_of(offset)
            whole = end_offset >= self.end_offset or (at + 1 < len(self._bases) and self._bases[at + 1] <= end_offset)
            end = segment.size if whole else segment.position_of(end_offset)
            if start < end:
                return self._read_segment(at, segment, start, end, bytes_max, at_least_one=at_least_one)
            at += 1
            if offset < end_offset and start >= segment.size and not self._may_have_gaps:
                behind = self._bases[at] if at < len(self._bases) else self.end_offset
                raise MissingRecordsError(segment, max(offset, segment.base_offset), behind)
        return b""

    def _read_segment(
        self, at: int, segment: Segment, start: int, end: int, bytes_max: int, *, at_least_one: bool
    ) -> bytes:
        if at + 1 < len(self._segments):
            self._keep_open(segment)
        stop = segment.whole_batches_end(start, end, bytes_max)
        if stop == start:
            if not at_least_one:
                return b""
            stop = segment.first_batch_end(start)
        data = segment.file.read_at(start, stop - start)
        if stop < segment.size:
            # The next batch begins with the offset that this reader will ask for next. Read by itself: taking it off
            # the end of `data` would copy all of that.
            next_offset = int.from_bytes(segment.file.read_at(stop, 8), "big")
        else:
            next_offset = self._bases[at + 1] if at + 1 < len(self._bases) else self.end_offset
        if next_offset > segment.base_offset:  # zeros may follow, where the disk has lost what was there
            self._remember(next_offset, segment, stop)
        return data

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        cursors = self._cursors
        if len(cursors) >= CURSORS_MAX and offset not in cursors:
            del cursors[next(iter(cursors))]
        cursors[offset] = (segment, position)

    def bytes_between(self, offset: int, end_offset: int) -> int | None:
        """
        Count the bytes of the batches from the one that holds `offset` up to `end_offset`, a batch boundary.

        None when they are not all in one segment. Reads headers at the most, where a position is not known.
        """
        at = max(bisect_right(self._bases, offset) - 1, 0)
        last = len(self._bases) - 1
        segment = self._segments[at]
        known = self._cursors.get(offset)
        if known is None or known[0] is not segment:
            known = segment, segment.position_of(offset)
            self._remember(offset, *known)
        start = known[1]
        while start >= segment.size and at < last:  # the next one begins behind it
            at, start = at + 1, 0
            segment = self._segments[at]
        if at < last and end_offset > self._bases[at + 1]:
            return None
        whole = at == last and end_offset >= self.end_offset
        return (segment.size if whole else segment.position_of(end_offset)) - start

    def _keep_open(self, segment: Segment) -> None:
        """Keep the sealed segments that were read last open, and only them."""
        self._opened.pop(segment, None)
        self._opened[segment] = None
        if len(self._opened) > OPEN_SEALED_MAX:
            oldest = next(iter(self._opened))
            del self._opened[oldest]
            if oldest not in self._dirty:
                oldest.release()

    def headers_from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the headers of all batches that end at `offset` or behind, with each control batch itself."""
        for at in range(max(bisect_right(self._bases, offset) - 1, 0), len(self._segments)):
            segment = self._segments[at]
            if segment.size:
                for position, header in scan(segment.file, segment.position_of(offset), segment.size):
                    yield header, segment.file.read_at(position, header.size) if header.is_control else b""

    def written_ms(self, offset: int) -> int:
        """When the segment that holds `offset` was last written, by this machine's clock; raises OSError."""
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)].written_ms

    def set_epoch(self, offset: int, epoch: int) -> None:
        """Write the leader epoch of the batch at `offset`, on the disk too; raises OSError."""
        segment = self._segments[max(bisect_right(self._bases, offset) - 1, 0)]
        position = segment.position_of(offset)
        segment.file.write_at(position + LEADER_EPOCH_OFFSET, [epoch.to_bytes(4, "big", signed=True)])
        segment.file.sync()

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """Take in a transaction whose abort marker is the latest in the log."""
        at = max(bisect_right(self._bases, transaction.last_offset) - 1, 0)
        self.aborted.add(self._bases[at], transaction)

    def save_aborted(self, from_offset: int) -> None:
        """Write what recovery found behind `from_offset` in segments that grow no more; raises OSError."""
        for base_offset in self._bases[max(bisect_right(self._bases, from_offset) - 1, 0) : -1]:
            self.aborted.save(base_offset)

    # Truncation.

    def prepare_truncation(self, offset: int, now_ms: int) -> TruncationJob:
        """
        Let go of `offset` and all behind it, for readers at once; `offset` lies in the log, and nothing else runs.

        A batch that holds `offset` goes as a whole. Raises OSError.
        """
        assert self._job is None, "nothing is being written to a log that is cut"
        at = max(bisect_right(self._bases, offset) - 1, 0)
        segment = self._segments[at]
        position, end_offset = segment.place_of_cut(offset)
        was_sealed = at + 1 < len(self._segments)
        removed = self._segments[at + 1 :]
        segment.cut(position, end_offset)
        del self._segments[at + 1 :]
        mark_gaps = was_sealed and not self._may_have_gaps
        return self._shortened(removed, end_offset, now_ms, mark_gaps=mark_gaps, is_restart=False)

    def prepare_restart(self, offset: int, now_ms: int) -> TruncationJob:
        """Let go of everything, to begin again at `offset`; otherwise as `prepare_truncation`."""
        assert self._job is None, "nothing is being written to a log that is cut"
        removed = list(self._segments)
        fresh = Segment(
            self._files,
            self.directory,
            offset,
            size=0,
            index_interval_bytes=self.limits.index_interval_bytes,
            now_ms=now_ms,
        )
        fresh.begin_empty()
        self._segments[:] = [fresh]
        return self._shortened(removed, offset, now_ms, mark_gaps=False, is_restart=True)

    def _shortened(
        self, removed: Sequence[Segment], end_offset: int, now_ms: int, *, mark_gaps: bool, is_restart: bool
    ) -> TruncationJob:
        self._bases[:] = [segment.base_offset for segment in self._segments]
        for segment in removed:
            segment.close()
            self._dirty.pop(segment, None)
            self._opened.pop(segment, None)
        self._opened.pop(self._segments[-1], None)
        self._cursors.clear()
        self.end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)
        base = self._bases[-1]
        self.truncation = job = TruncationJob(
            self._files,
            self.directory,
            kept=[(segment.base_offset, segment.size) for segment in self._segments],
            removed=[segment.base_offset for segment in removed if segment.base_offset != base],
            end_offset=end_offset,
            aborted=self.aborted.cut(base, end_offset),
            mark_gaps=mark_gaps,
            is_restart=is_restart,
            now_ms=now_ms,
            metadata=self._metadata,
        )
        return job

    def commit_truncation(self, job: TruncationJob) -> None:
        """Take note that `job` has run."""
        assert job is self.truncation
        self.truncation = None
        self._metadata = None
        self._may_have_gaps = self._may_have_gaps or job.mark_gaps
        self._dirty.pop(self._segments[-1], None)
        self._dirty_directories.pop(self.directory, None)
        if not self._dirty and not self._dirty_directories:
            self.recovery_point = self.end_offset

    # Retention.

    def expired_segments(self, now_ms: int, *, log_start_offset: int, high_watermark: int, by_config: bool) -> int:
        """
        Return how many segments from the front are let go.

        A segment goes when the log start has passed it and, with `by_config`, when its newest record is older than
        retention.ms (see `Segment.largest_timestamp`) or when the rest alone holds retention.bytes. The active one
        stays. Raises OSError.
        """
        sealed = self._segments[:-1]
        excess = self.size_bytes - self.limits.retention_bytes if self.limits.retention_bytes >= 0 else -1
        count = 0
        for segment, end in zip(sealed, self._bases[1:], strict=True):
            if end > high_watermark or segment in self._dirty:
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
        segment = self._segments[0]
        self._opened.pop(segment, None)
        retired = segment.retire()
        del self._segments[0]
        del self._bases[0]
        retired += self.aborted.forget(segment.base_offset)
        self._cursors.clear()
        return retired

    def roll_active(self, producer_rows: Callable[[int], Iterable[ProducerRow]], now_ms: int) -> bool:
        """
        Seal the active segment even though it is not full, so that retention can take it; say whether that was done.

        The new file is on the disk before anything can be removed: its name alone then says where offsets go on.
        Raises OSError.
        """
        if self._job is not None or not self._segments[-1].size:
            return False
        segment = self._roll(self.end_offset, producer_rows, now_ms)
        segment.file.sync()
        self._files.sync_directory(self.directory)
        return True

    def active_overdue(self, now_ms: int) -> bool:
        """Whether the active segment has been open for longer than its records may stay uncompacted."""
        active = self._segments[-1]
        return bool(active.size) and now_ms - active.created_ms > self.limits.segment_ms_max

    # Compaction.

    def closed_segments(self, high_watermark: int) -> list[tuple[Segment, int]]:
        """List (segment, its end) of those from the front that are on the disk and below the high watermark."""
        closed: list[tuple[Segment, int]] = []
        for segment, end in zip(self._segments[:-1], self._bases[1:], strict=True):
            if segment in self._dirty or end > high_watermark:
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
                        first = segment.written_ms
                if segment not in self._opened:
                    segment.release()
            facts.append(ClosedSegment(segment.base_offset, end, segment.size, newest, first))
        return facts

    def replace(self, sources: Sequence[Segment], segment: Segment) -> None:
        """Let `segment` stand where `sources`, neighbours, stood; readers go on in it."""
        first = self._bases.index(sources[0].base_offset)
        assert self._segments[first : first + len(sources)] == list(sources), "the sources are in the log"
        assert first + len(sources) < len(self._segments), "the active segment is never replaced"
        for source in sources:
            self._opened.pop(source, None)
            source.close()
        self._segments[first : first + len(sources)] = [segment]
        self._bases[first : first + len(sources)] = [segment.base_offset]
        self._cursors.clear()

    # Retention of what is not full.

    def active_expired(self, now_ms: int) -> bool:
        """Whether even the newest record is older than retention.ms; raises OSError."""
        active = self._segments[-1]
        return bool(active.size) and 0 <= self.limits.retention_ms < now_ms - active.largest_timestamp

    # The end of it.

    def close(self, producer_rows: Iterable[ProducerRow]) -> None:
        """Sync everything and write what makes the next start quick; raises OSError."""
        for segment in self._dirty:
            segment.file.sync()
        for directory in self._dirty_directories:
            self._files.sync_directory(directory)
        self._synced()
        active = self._segments[-1]
        if active.size:
            active.save_indexes()
            self.aborted.save(active.base_offset)
        if self.end_offset:
            self.save_producers(self.end_offset, producer_rows)
        self.close_files()

    def close_files(self) -> None:
        """Give the file descriptors back and leave everything as it is."""
        for segment in self._segments:
            segment.close()
