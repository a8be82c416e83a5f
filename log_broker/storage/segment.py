"""
One segment: a file of batches and its two indexes, which are kept in memory and written when the segment is sealed.

A sealed segment opens its file and reads its indexes on first use, so that a log of thousands of segments starts
without touching them.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from zlib import crc32

from log_broker.records.batch import (
    HEADER_BYTES,
    MAGIC,
    MIN_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    crc_is_valid,
    read_header,
)
from log_broker.storage.files import File, FileSystem
from log_broker.storage.index import OFFSET_ENTRY_BYTES, RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex

_log = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"

_SCAN_BYTES = 1024 * 1024
_SEARCH_BYTES = 16 * 1024


class SegmentLimits(Protocol):
    """When a new segment begins: the part of a topic's config that storage goes by."""

    @property
    def segment_bytes(self) -> int: ...

    @property
    def segment_ms_max(self) -> int: ...

    @property
    def segment_jitter_ms(self) -> int: ...

    @property
    def segment_index_bytes(self) -> int: ...


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a file that starts at `offset`: twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def scan(
    file: File, start: int, end: int, *, read_bytes: int = _SCAN_BYTES, checked_from: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """
    Yield (position, header) of the batches in [start, end); stop at the first that is not whole and well formed.

    With `checked_from` the checksum of each batch that ends at or behind that offset must hold too.
    """
    position = start
    origin = 0
    chunk = b""
    next_offset = -1
    while position + HEADER_BYTES <= end:
        at = position - origin
        if not chunk or at + HEADER_BYTES > len(chunk):
            origin, at = position, 0
            chunk = file.read_at(position, read_bytes)
            if len(chunk) < HEADER_BYTES:
                return
        header = read_header(chunk, at)
        size = header.size
        if header.magic != MAGIC or header.length < MIN_LENGTH or position + size > end:
            return
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            return
        if checked_from is not None and header.last_offset >= checked_from:
            if at + size > len(chunk):
                origin, at = position, 0
                chunk = file.read_at(position, max(size, read_bytes))
                if len(chunk) < size:
                    return
            if not crc_is_valid(memoryview(chunk)[at : at + size], header.crc):
                return
        yield position, header
        next_offset = header.last_offset + 1
        position += size


class Segment:
    """
    The batches from `base_offset` up to the next segment's.

    `size` counts the bytes that are known to be whole batches; the file may be longer while a write is under way.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_file",
        "_files",
        "_index_interval_bytes",
        "_indexes",
        "_max_timestamp",
        "_written_ms",
        "base_offset",
        "created_ms",
        "directory",
        "first_timestamp",
        "index_bytes",
        "leaves",
        "size",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        base_offset: int,
        *,
        size: int,
        index_interval_bytes: int,
        now_ms: int,
        file: File | None = None,
    ) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.created_ms = now_ms
        self.first_timestamp: int | None = None  # of the first batch; known for the active segment only
        self.index_bytes = 0  # of the larger of the two indexes; known for the active segment only
        self.leaves = False  # about to be replaced: its index files are gone and must not come back
        self._file = file
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp: tuple[int, int] | None = None  # (timestamp, relative offset)
        self._written_ms: int | None = None

    def path(self, suffix: str = LOG_SUFFIX) -> Path:
        return self.directory / file_name(self.base_offset, suffix)

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path())
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def offset_index(self) -> OffsetIndex:
        return self._load()[0]

    @property
    def time_index(self) -> TimeIndex:
        return self._load()[1]

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """(largest timestamp, offset of a record that has it); (-1, base offset) for an empty segment."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last
        return self._max_timestamp[0], self.base_offset + self._max_timestamp[1]

    @property
    def knows_times(self) -> bool:
        """Whether `max_timestamp` is known without reading the index files."""
        return self._max_timestamp is not None

    @property
    def written_ms(self) -> int:
        """When the file was last written, by this machine's clock; raises OSError."""
        if self._written_ms is None:
            self._written_ms = self._files.modified_ms(self.path())
        return self._written_ms

    @written_ms.setter
    def written_ms(self, now_ms: int) -> None:
        self._written_ms = now_ms

    @property
    def largest_timestamp(self) -> int:
        """
        From when its newest record counts: the largest timestamp or, where none has one (-1), when it was last written.

        As Kafka's LogSegment.largestTimestamp. Raises OSError.
        """
        timestamp = self.max_timestamp[0]
        return timestamp if timestamp >= 0 else self.written_ms

    def begin_empty(self) -> None:
        """Make this a new active segment, in which nothing has to be looked for on the disk."""
        self._indexes = OffsetIndex(), TimeIndex()
        self._max_timestamp = (-1, 0)
        self._written_ms = self.created_ms

    def note(self, batch_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Take a batch, just written behind the others, into size and indexes."""
        assert self._indexes is not None, "only a segment whose indexes are loaded grows"
        assert self._max_timestamp is not None
        relative = last_offset - self.base_offset
        if max_timestamp > self._max_timestamp[0]:
            self._max_timestamp = (max_timestamp, relative)
        if self._bytes_since_entry > self._index_interval_bytes:
            self._indexes[0].append(relative, self.size)
            self._indexes[1].maybe_append(*self._max_timestamp)
            self.index_bytes = _bytes_of(*self._indexes)
            self._bytes_since_entry = 0
        self._bytes_since_entry += batch_bytes
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        self.size += batch_bytes

    def is_full_for(
        self, batch_bytes: int, last_offset: int, max_timestamp: int, now_ms: int, limits: SegmentLimits
    ) -> bool:
        """Whether this batch belongs into a new segment."""
        if self.size == 0:
            return last_offset - self.base_offset > RELATIVE_OFFSET_MAX  # a leader has compacted all between
        if (
            self.size + batch_bytes > limits.segment_bytes
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or self.index_bytes > limits.segment_index_bytes - TIME_ENTRY_BYTES
        ):
            return True
        if max_timestamp >= 0 and self.first_timestamp is not None and self.first_timestamp >= 0:
            age_ms = max_timestamp - self.first_timestamp
        else:
            age_ms = now_ms - self.created_ms
        return age_ms > limits.segment_ms_max - (self._jitter_ms(limits) if limits.segment_jitter_ms else 0)

    def _jitter_ms(self, limits: SegmentLimits) -> int:
        """
        Return how much earlier than others this segment ends, so that not all of a topic's partitions roll at once.

        It looks random and is always the same for one segment, which needs no generator and no memory over a restart.
        """
        return crc32(os.fsencode(self.path())) % min(limits.segment_jitter_ms, limits.segment_ms_max)

    def rebuild(
        self, *, checked_from: int | None = None, without_gaps: bool = False, end_max: int | None = None
    ) -> int | None:
        """
        Make the indexes again from the batches and set `size` to the end of the last good one.

        A base offset stands outside its batch's checksum. `without_gaps` catches a damaged one where compaction, which
        leaves gaps, has never been: in a segment that was still growing. Elsewhere one that leads beyond `end_max`,
        where the next segment begins, is damaged.

        Returns the offset behind the last good batch, None when there is none.
        """
        fresh = Segment(
            self._files,
            self.directory,
            self.base_offset,
            size=0,
            index_interval_bytes=self._index_interval_bytes,
            now_ms=self.created_ms,
        )
        fresh.begin_empty()
        next_offset = None
        for _, header in scan(self.file, 0, self.size, checked_from=checked_from):
            expected = self.base_offset if next_offset is None else next_offset
            if header.base_offset < expected or (without_gaps and header.base_offset != expected):
                break
            if end_max is not None and header.last_offset >= end_max:
                break
            fresh.note(header.size, header.last_offset, header.max_timestamp if header.record_count else NO_TIMESTAMP)
            next_offset = header.last_offset + 1
        # All at once: a compaction may be reading this segment in another thread and goes by its size.
        self._indexes = fresh._indexes
        self._max_timestamp = fresh._max_timestamp
        self._bytes_since_entry = fresh._bytes_since_entry
        self.index_bytes = fresh.index_bytes
        self.first_timestamp = fresh.first_timestamp
        self.size = fresh.size
        return next_offset

    def resume(self) -> int | None:
        """
        Make a cleanly closed segment active again, reading only what lies behind its last index entry.

        Returns the offset behind its last batch, None when there is none.
        """
        if self.size == 0:
            self.begin_empty()
            return None
        index, times = self._load()
        self._max_timestamp = times.last
        self.index_bytes = _bytes_of(index, times)
        start = index.positions[-1] if index.positions else 0
        next_offset = None
        for position, header in scan(self.file, start, self.size, read_bytes=_SEARCH_BYTES):
            next_offset = header.last_offset + 1
            self._bytes_since_entry = position + header.size - start
        self.first_timestamp = self.first_batch_timestamp()
        return next_offset

    def end_offset(self) -> int:
        """Return the offset behind the last whole batch, reading only what lies behind the last index entry."""
        index, _ = self._load()
        end_offset = self.base_offset
        start = index.positions[-1] if index.positions else 0
        for _, header in scan(self.file, start, self.size, read_bytes=_SEARCH_BYTES):
            end_offset = header.last_offset + 1
        return end_offset

    def place_of_cut(self, offset: int) -> tuple[int, int]:
        """Return (position, end offset) of a cut before `offset`: the batch that holds it, if one does, goes whole."""
        position = self.position_of(offset)
        if position < self.size:
            offset = min(offset, read_header(self.file.read_at(position, HEADER_BYTES)).base_offset)
        return position, offset

    def cut(self, position: int, end_offset: int) -> None:
        """Forget what lies at `position` and behind; the next batch will be that at `end_offset`."""
        index, times = self._load()
        index.truncate(position)
        times.truncate(end_offset - self.base_offset)
        self.size = position
        self._max_timestamp = times.last
        self._bytes_since_entry = 0
        start = index.positions[-1] if index.positions else 0
        for at, header in scan(self.file, start, position, read_bytes=_SEARCH_BYTES):
            if header.record_count and header.max_timestamp > self._max_timestamp[0]:
                self._max_timestamp = (header.max_timestamp, header.last_offset - self.base_offset)
            self._bytes_since_entry = at + header.size - start
        self.index_bytes = _bytes_of(index, times)
        self.first_timestamp = self.first_batch_timestamp() if position else None

    def first_batch_timestamp(self) -> int:
        """Return the newest timestamp of the first batch, -1 for an empty segment; reads the file."""
        first = next(scan(self.file, 0, self.size, read_bytes=_SEARCH_BYTES), None)
        return first[1].max_timestamp if first else NO_TIMESTAMP

    def position_of(self, offset: int) -> int:
        """Return where the batch starts that holds `offset` or, if none does, the next one; `size` behind the last."""
        entry = self.offset_index.entry_before(offset - self.base_offset)
        found = self._scan_for(offset, entry)
        if found is None:
            self._repair_indexes()
            found = self._scan_for(offset, self.offset_index.entry_before(offset - self.base_offset))
        return self.size if found is None else found

    def _scan_for(self, offset: int, entry: tuple[int, int] | None) -> int | None:
        """Look from an index entry on; None when the entry is not true."""
        start = 0 if entry is None else entry[1]
        for position, header in scan(self.file, start, self.size, read_bytes=_SEARCH_BYTES):
            if position == start and entry is not None and header.last_offset != self.base_offset + entry[0]:
                return None
            if header.last_offset >= offset:
                return position
            start = -1  # seen
        return None if entry is not None and start >= 0 else self.size

    def search_start(self, timestamp: int) -> int:
        """Return an offset at or before the first record that is at least this late."""
        entry = self.time_index.entry_before(timestamp)
        if entry is not None and not self._is_true(entry):
            self._repair_indexes()
            entry = self.time_index.entry_before(timestamp)
        return self.base_offset + (entry[1] if entry is not None else 0)

    def _is_true(self, entry: tuple[int, int]) -> bool:
        """Whether an entry of the time index speaks of a batch that there is."""
        position = self.position_of(self.base_offset + entry[1])
        header = next((header for _, header in scan(self.file, position, self.size, read_bytes=HEADER_BYTES)), None)
        return header is not None and (header.max_timestamp, header.last_offset - self.base_offset) == entry

    def _ends_are_true(self, index: OffsetIndex, times: TimeIndex) -> bool:
        """
        Whether the last entries speak of batches that there are, and none behind them is newer than the last time.

        That time is what retention goes by, so an index that was cut short must not pass.
        """
        start = index.positions[-1] if index.positions else 0
        newest = times.timestamps[-1]
        for position, header in scan(self.file, start, self.size, read_bytes=_SEARCH_BYTES):
            if position == start and index.offsets and header.last_offset != self.base_offset + index.offsets[-1]:
                return False
            if header.record_count and header.max_timestamp > newest:
                return False
            start = -1  # seen
        return start < 0 and self._is_true(times.last)

    def _repair_indexes(self) -> None:
        """Make both indexes again: one was found to say what is not so."""
        _log.warning("%s: an index does not agree with the log and is made again", self.path())
        self.rebuild()
        self.save_indexes()

    def whole_batches_end(self, start: int, end: int, bytes_max: int) -> int:
        """Return the largest batch boundary in [start, start + bytes_max], `end` being one."""
        if end - start <= bytes_max:
            return end
        known = self.offset_index.boundary_before(start + bytes_max, after=start)
        if known is not None:
            if read_header(self.file.read_at(known[1], HEADER_BYTES)).last_offset == self.base_offset + known[0]:
                return known[1]
            self._repair_indexes()
            return self.whole_batches_end(start, end, bytes_max)
        boundary = start
        for position, header in scan(self.file, start, end, read_bytes=_SEARCH_BYTES):
            if position + header.size > start + bytes_max:
                break
            boundary = position + header.size
        return boundary

    def first_batch_end(self, start: int) -> int:
        """Return where the batch that starts at `start` ends."""
        return start + read_header(self.file.read_at(start, HEADER_BYTES)).size

    def save_indexes(self) -> None:
        """Write the index files. They need no sync: what is lost of them is made again."""
        if self.leaves:
            return
        index, times = self._load()
        if self._max_timestamp is not None:
            # The last entry of a time index names the largest timestamp of all, which retention goes by.
            times.maybe_append(*self._max_timestamp)
        self._files.replace(self.path(INDEX_SUFFIX), index.to_bytes(), sync=False)
        self._files.replace(self.path(TIME_INDEX_SUFFIX), times.to_bytes(), sync=False)

    def release(self) -> None:
        """Close the file and forget the indexes; the next use brings them back."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._indexes = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove_indexes(self) -> None:
        """Remove the index files; while the segment `leaves` they are not written again."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._files.remove(self.path(suffix))

    def retire(self) -> list[Path]:
        """
        Take the files out of the log by another name, and return those that are to be removed later. Raises OSError.

        Should a crash bring the old names back, the segment lies before the log's start and goes once more.
        """
        self.close()
        retired = []
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, LOG_SUFFIX):
            path = self.path(suffix)
            doomed = path.with_name(path.name + DELETED_SUFFIX)
            with suppress(FileNotFoundError):
                self._files.rename(path, doomed)
                retired.append(doomed)
        return retired

    def remove(self) -> None:
        """Remove the files, the log last: an index without its log would be taken for rubbish anyway."""
        self.close()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, LOG_SUFFIX):
            self._files.remove(self.path(suffix))

    def _load(self) -> tuple[OffsetIndex, TimeIndex]:
        if self._indexes is None:
            self._indexes = self._read_indexes()
        return self._indexes

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        index_content = self._files.read(self.path(INDEX_SUFFIX))
        times_content = self._files.read(self.path(TIME_INDEX_SUFFIX))
        if index_content is not None and times_content:
            index = OffsetIndex.from_bytes(index_content, self.size)
            times = TimeIndex.from_bytes(times_content)
            # A crash may leave a file of the right name and no content.
            if index is not None and times is not None and (index.offsets or self.size <= self._index_interval_bytes):
                self._indexes = index, times
                if self._ends_are_true(index, times):
                    return self._indexes
        self.rebuild()
        self.save_indexes()
        assert self._indexes is not None
        return self._indexes


def _bytes_of(index: OffsetIndex, times: TimeIndex) -> int:
    return max(len(index.offsets) * OFFSET_ENTRY_BYTES, len(times.offsets) * TIME_ENTRY_BYTES)
