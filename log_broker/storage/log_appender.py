"""
Appending to a log, in three steps, so that the middle one may run in another thread.

`prepare` picks the segment and the place in it, the job's `run` writes and syncs, `commit` makes the batches part of
the log, or `abandon` cuts off whatever reached the file. Between `prepare` and the last step readers see the log as it
was. One job at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from log_broker.core.partition.producers import ProducerRow
from log_broker.core.partition.protocol import PendingBatch
from log_broker.records.batch import Buffer
from log_broker.storage.append_job import AppendJob
from log_broker.storage.checkpoints import (
    GAPS_FILE,
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    encode_epochs,
    encode_producers,
)
from log_broker.storage.files import FileSystem
from log_broker.storage.log_reader import LogReader
from log_broker.storage.producer_replay import snapshot_offsets
from log_broker.storage.rolling import SegmentLimits, should_roll
from log_broker.storage.segment import Segment
from log_broker.storage.segment_files import SNAPSHOT_SUFFIX, SegmentFiles, file_name
from log_broker.storage.segments import Segments
from log_broker.storage.transaction_index import AbortedTransactions
from log_broker.storage.unsynced import Unsynced

SNAPSHOTS_KEPT = 2  # as Kafka: the latest, and the one before in case the latest is damaged


class LogLimits(SegmentLimits, Protocol):
    """The part of a topic's config that storage goes by."""

    @property
    def index_interval_bytes(self) -> int: ...

    @property
    def retention_ms(self) -> int: ...

    @property
    def retention_bytes(self) -> int: ...


class LogAppender:
    """Grows the active segment, and begins a new one where that is due; `job` is the write under way."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        limits: LogLimits,
        *,
        segments: Segments,
        unsynced: Unsynced,
        reader: LogReader,
        aborted: AbortedTransactions,
    ) -> None:
        self.limits = limits
        self.job: AppendJob | None = None
        self._files = files
        self._directory = directory
        self._segments = segments
        self._unsynced = unsynced
        self._reader = reader
        self._aborted = aborted

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
        assert self.job is None, "one write at a time"
        taken: list[PendingBatch] = []
        buffers: list[Buffer] = []
        planned_bytes = 0
        limits, active = self.limits, self._segments.items[-1]
        for pending in batches:
            if pending.batch is not None:
                size = len(pending.batch)
                if should_roll(active, planned_bytes + size, pending, now_ms, limits):
                    if buffers:
                        break
                    active = self.roll(pending.base_offset, producer_rows, now_ms)
                elif not active.size and planned_bytes and planned_bytes + size > limits.segment_bytes:
                    break
                buffers.append(pending.batch)
                planned_bytes += size
            taken.append(pending)
        unsynced = self._unsynced
        segment = active if buffers else None
        if segment is not None:
            segment.files.written_ms = now_ms
            unsynced.add(segment)
        marks: tuple[tuple[Path, bytes], ...] = ()
        if epochs is not None:
            marks = ((self._directory / LEADER_EPOCH_FILE, encode_epochs(epochs)),)
        if gaps and not self._segments.may_have_gaps:
            marks = (*marks, (self._directory / GAPS_FILE, b""))
        if unsynced.metadata is not None and segment is not None:
            marks = ((self._directory / PARTITION_METADATA_FILE, unsynced.metadata), *marks)
        self.job = AppendJob(
            self._files,
            segment=segment,
            batches=taken,
            buffers=buffers,
            sync_files=[dirty.files.log for dirty in unsynced.segments] if sync else (),
            directories=list(unsynced.directories) if sync else (),
            sync=sync,
            marks=marks,
        )
        return self.job

    def commit(self, job: AppendJob) -> None:
        """Take the job's batches into the log."""
        assert job is self.job
        self.job = None
        for path, _ in job.marks:
            if path.name == GAPS_FILE:
                self._segments.may_have_gaps = True
            elif path.name == PARTITION_METADATA_FILE:
                self._unsynced.metadata = None
        segment = job.segment
        if segment is not None:
            for pending in job.batches:
                if pending.batch is not None:
                    segment.note(len(pending.batch), pending.last_offset, pending.max_timestamp)
                    self._segments.end_offset = pending.last_offset + 1
        if job.synced:
            self._reader.release(self._unsynced.all_synced(self._segments.end_offset))

    def abandon(self, job: AppendJob) -> None:
        """Cut off whatever the failed job wrote; raises OSError when even that fails."""
        assert job is self.job
        self.job = None
        if job.target is not None:
            job.target.truncate(job.position)

    def roll(self, base_offset: int, producer_rows: Callable[[int], Iterable[ProducerRow]], now_ms: int) -> Segment:
        """Seal the active segment and return the new one; raises OSError."""
        sealed = self._segments.items[-1]
        sealed.save_indexes()
        # Before the snapshot, behind which recovery does not look for aborted transactions.
        self._aborted.save(sealed.base_offset)
        self.save_producers(base_offset, producer_rows(base_offset))
        if sealed not in self._unsynced.segments:
            sealed.release()
        segment = self.new_segment(base_offset, now_ms)
        self._segments.add(segment)
        return segment

    def new_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Return an empty segment, which is no part of the log yet."""
        return Segment.begin(
            SegmentFiles(self._files, self._directory, base_offset),
            index_interval_bytes=self.limits.index_interval_bytes,
            now_ms=now_ms,
        )

    def save_producers(self, offset: int, rows: Iterable[ProducerRow]) -> None:
        """Write the producers as of the batches before `offset`, and drop snapshots that are no longer needed."""
        self._files.replace(self._directory / file_name(offset, SNAPSHOT_SUFFIX), encode_producers(rows), sync=False)
        for old in snapshot_offsets(self._files, self._directory)[:-SNAPSHOTS_KEPT]:
            self._files.remove(self._directory / file_name(old, SNAPSHOT_SUFFIX))
