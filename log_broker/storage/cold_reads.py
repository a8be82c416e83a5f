"""
Parts of a log that are not in the page cache: known before they are read, so that another thread waits for the disk.

The kernel tells by `preadv2` with RWF_NOWAIT (Linux 4.14). Where it does not, everything counts as cached.
"""

from dataclasses import dataclass
from pathlib import Path

from log_broker.storage.files import FileSystem
from log_broker.storage.segment import Segment
from log_broker.storage.segment_files import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from log_broker.storage.segments import Segments

RECENT_BYTES = 1024 * 1024  # what was written last is in the page cache
SEARCH_BYTES = 64 * 1024  # read around what is asked for: to find where it begins, and which batch comes next
WHOLE_FILE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ColdPart:
    """Parts of files, (path, position, length), that a read would wait for."""

    files: FileSystem
    parts: tuple[tuple[Path, int, int], ...]

    def load(self) -> None:
        """Have the page cache hold them; in any thread, whatever has become of the files. Raises OSError."""
        for path, position, length in self.parts:
            self.files.load(path, position, length)


class ColdReads:
    """Finds what readers of one log would wait for."""

    __slots__ = ("_files", "_segments", "_told")

    def __init__(self, files: FileSystem, segments: Segments) -> None:
        self._files = files
        self._segments = segments
        self._told: Segment | None = None  # of which the indexes were said to be cold, so that they are by now loaded

    def part(self, offset: int, bytes_max: int, known: tuple[Segment, int] | None) -> ColdPart | None:
        """
        Return what a read of `bytes_max` from `offset` on would wait for first, None when it would not wait.

        `known` is a segment and where in it a read from `offset` begins, if a reader has come to there. Raises OSError.
        """
        segment = self._segments.holding(offset)
        is_active = segment is self._segments.active
        if known is not None and known[0] is segment:
            position = known[1]
        else:
            # One that nobody reads has no file open, and no index in memory.
            if not segment.files.is_open and self._told is not segment:
                self._told = segment
                return self._indexes_of(segment)
            entry = segment.offset_index.entry_before(offset - segment.base_offset)
            position = 0 if entry is None else entry[1]
        if is_active and segment.size - position <= RECENT_BYTES:
            return None
        length = min(bytes_max + SEARCH_BYTES, segment.size - position)
        if length <= 0 or segment.file.is_cached(position, length):
            return None
        return ColdPart(self._files, ((segment.path(), position, length),))

    def _indexes_of(self, segment: Segment) -> ColdPart:
        """The index files, and the end of the log by which they are checked."""
        tail = max(segment.size - SEARCH_BYTES, 0)
        return ColdPart(
            self._files,
            (
                (segment.path(INDEX_SUFFIX), 0, WHOLE_FILE),
                (segment.path(TIME_INDEX_SUFFIX), 0, WHOLE_FILE),
                (segment.path(), tail, SEARCH_BYTES),
            ),
        )
