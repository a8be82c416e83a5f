"""
One segment: a file of batches and its two indexes, which are kept in memory and written when the segment is sealed.

A sealed segment opens its file and reads its indexes on first use, so that a log of thousands of segments starts
without touching them.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from log_broker.records.batch import (
    HEADER_BYTES,
    MAGIC,
    MIN_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    crc_is_valid,
    read_header,
)
from log_broker.storage.files import File
from log_broker.storage.index import OFFSET_ENTRY_BYTES, RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from log_broker.storage.segment_files import LOG_SUFFIX, SegmentFiles

_log = logging.getLogger(__name__)

_SCAN_BYTES = 1024 * 1024
_SEARCH_BYTES = 16 * 1024


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


def has_gaps(file: File, base_offset: int, size: int, end_offset: int) -> bool:
    """Whether offsets are missing in [base_offset, end_offset), as compaction leaves it. Raises OSError."""
    next_offset = base_offset
    for _, header in scan(file, 0, size):
        if header.base_offset != next_offset:
            return True
        next_offset = header.last_offset + 1
    return next_offset != end_offset


class Segment:
    """
    The batches from `base_offset` up to the next segment's.

    `size` counts the bytes that are known to be whole batches; the file may be longer while a write is under way.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_index_interval_bytes",
        "_indexes",
        "_max_timestamp",
        "base_offset",
        "created_ms",
        "files",
        "first_timestamp",
        "index_bytes",
        "leaves",
        "size",
    )

    def __init__(self, files: SegmentFiles, *, size: int, index_interval_bytes: int, now_ms: int) -> None:
        self.files = files
        self.base_offset = files.base_offset
        self.size = size
        self.created_ms = now_ms
        self.first_timestamp: int | None = None  # of the first batch; known for the active segment only
        self.index_bytes = 0  # of the larger of the two indexes; known for the active segment only
        self.leaves = False  # about to be replaced: its index files are gone and must not come back
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp: tuple[int, int] | None = None  # (timestamp, relative offset)

    @classmethod
    def begin(cls, files: SegmentFiles, *, index_interval_bytes: int, now_ms: int) -> Self:
        """Return a new active segment, for which nothing has to be looked for on the disk."""
        segment = cls(files, size=0, index_interval_bytes=index_interval_bytes, now_ms=now_ms)
        segment._begin_empty()
        files.written_ms = now_ms
        return segment

    def _begin_empty(self) -> None:
        self._indexes = OffsetIndex(), TimeIndex()
        self._max_timestamp = (-1, 0)

    def path(self, suffix: str = LOG_SUFFIX) -> Path:
        return self.files.path(suffix)

    @property
    def directory(self) -> Path:
        return self.files.directory

    @property
    def file(self) -> File:
        return self.files.log

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
    def largest_timestamp(self) -> int:
        """
        From when its newest record counts: the largest timestamp or, where none has one (-1), when it was last written.

        As Kafka's LogSegment.largestTimestamp. Raises OSError.
        """
        timestamp = self.max_timestamp[0]
        return timestamp if timestamp >= 0 else self.files.written_ms

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

    def rebuild(
        self, *, checked_from: int | None = None, without_gaps: bool = False, end_max: int | None = None
    ) -> int:
        """
        Make the indexes again from the batches and set `size` to the end of the last good one.

        A base offset stands outside its batch's checksum. `without_gaps` catches a damaged one where compaction, which
        leaves gaps, has never been: in a segment that was still growing. Elsewhere one that leads beyond `end_max`,
        where the next segment begins, is damaged, and so is one farther from the segment's base than an index can say.

        Returns the offset behind the last good batch, the segment's base when there is none.
        """
        fresh = Segment(self.files, size=0, index_interval_bytes=self._index_interval_bytes, now_ms=self.created_ms)
        fresh._begin_empty()
        next_offset = self.base_offset
        index_end = self.base_offset + RELATIVE_OFFSET_MAX + 1
        end_max = index_end if end_max is None else min(end_max, index_end)
        for _, header in scan(self.file, 0, self.size, checked_from=checked_from):
            if header.base_offset < next_offset or (without_gaps and header.base_offset != next_offset):
                break
            if header.last_offset >= end_max:
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

    def resume(self) -> int:
        """
        Make a cleanly closed segment active again, reading only what lies behind its last index entry.

        Returns the offset behind its last batch, its base when there is none.
        """
        if self.size == 0:
            self._begin_empty()
            self.files.written_ms = self.created_ms
            return self.base_offset
        index, times = self._load()
        self._max_timestamp = times.last
        self.index_bytes = _bytes_of(index, times)
        next_offset = self.base_offset
        for position, header in self._behind_last_entry(index):
            next_offset = header.last_offset + 1
            self._bytes_since_entry = position + header.size - index.last_position
        self.first_timestamp = self.first_batch_timestamp()
        return next_offset

    def end_offset(self) -> int:
        """Return the offset behind the last whole batch, reading only what lies behind the last index entry."""
        index, _ = self._load()
        end_offset = self.base_offset
        for _, header in self._behind_last_entry(index):
            end_offset = header.last_offset + 1
        return end_offset

    def _behind_last_entry(self, index: OffsetIndex) -> Iterator[tuple[int, BatchHeader]]:
        return scan(self.file, index.last_position, self.size, read_bytes=_SEARCH_BYTES)

    def cut(self, offset: int) -> int:
        """Forget the batch that holds `offset` and all behind; return where the next one begins. Raises OSError."""
        position = self.position_of(offset)
        end_offset = min(offset, self.header_at(position).base_offset) if position < self.size else offset
        index, times = self._load()
        index.truncate(position)
        times.truncate(end_offset - self.base_offset)
        self.size = position
        self._max_timestamp = times.last
        self._bytes_since_entry = 0
        for at, header in self._behind_last_entry(index):
            if header.record_count and header.max_timestamp > self._max_timestamp[0]:
                self._max_timestamp = (header.max_timestamp, header.last_offset - self.base_offset)
            self._bytes_since_entry = at + header.size - index.last_position
        self.index_bytes = _bytes_of(index, times)
        self.first_timestamp = self.first_batch_timestamp() if position else None
        return end_offset

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
        start = index.last_position
        newest = times.timestamps[-1]
        for position, header in self._behind_last_entry(index):
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
            if self.header_at(known[1]).last_offset == self.base_offset + known[0]:
                return known[1]
            self._repair_indexes()
            return self.whole_batches_end(start, end, bytes_max)
        boundary = start
        for position, header in scan(self.file, start, end, read_bytes=_SEARCH_BYTES):
            if position + header.size > start + bytes_max:
                break
            boundary = position + header.size
        return boundary

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch that starts there; reads the file."""
        return read_header(self.files.log.read_at(position, HEADER_BYTES))

    def save_indexes(self) -> None:
        """Write the index files, unless the segment `leaves`; raises OSError."""
        if self.leaves:
            return
        index, times = self._load()
        if self._max_timestamp is not None:
            # The last entry of a time index names the largest timestamp of all, which retention goes by.
            times.maybe_append(*self._max_timestamp)
        self.files.write_indexes(index, times)

    def release(self) -> None:
        """Close the file and forget the indexes; the next use brings them back."""
        self.files.close()
        self._indexes = None

    def _load(self) -> tuple[OffsetIndex, TimeIndex]:
        if self._indexes is None:
            self._indexes = self._read_indexes()
        return self._indexes

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        found = self.files.read_indexes(self.size)
        # A crash may leave a file of the right name and no content.
        if found is not None and (found[0].offsets or self.size <= self._index_interval_bytes):
            self._indexes = found
            if self._ends_are_true(*found):
                return self._indexes
        self.rebuild()
        self.save_indexes()
        assert self._indexes is not None
        return self._indexes


def _bytes_of(index: OffsetIndex, times: TimeIndex) -> int:
    return max(len(index.offsets) * OFFSET_ENTRY_BYTES, len(times.offsets) * TIME_ENTRY_BYTES)
