"""
Reading a log: whole batches from one segment, found by where the reader before stopped or by an index.
"""

import errno
from collections.abc import Iterable

from log_broker.storage.cold_reads import ColdPart, ColdReads
from log_broker.storage.file_part import FilePart
from log_broker.storage.files import FileSystem
from log_broker.storage.segment import Segment
from log_broker.storage.segments import Segments
from log_broker.storage.unsynced import Unsynced

CURSORS_MAX = 64
OPEN_SEALED_MAX = 2  # sealed segments of one partition whose file and indexes stay open for readers


class MissingRecordsError(OSError):
    """Offsets that were given out are not in the log, which was never compacted: the disk has lost them."""

    def __init__(self, segment: Segment, first: int, end: int) -> None:
        super().__init__(errno.EIO, f"offsets {first} to {end - 1} are missing", str(segment.path()))


class LogReader:
    """Remembers where readers go on, and which sealed segments they have open."""

    __slots__ = ("_cold", "_cursors", "_opened", "_segments", "_unsynced")

    def __init__(self, files: FileSystem, segments: Segments, unsynced: Unsynced) -> None:
        self._cold = ColdReads(files, segments)
        self._segments = segments
        self._unsynced = unsynced
        self._cursors: dict[int, tuple[Segment, int]] = {}  # where the reader who got the bytes before will go on
        self._opened: dict[Segment, None] = {}  # sealed ones, that read last at the end

    def read(self, offset: int, bytes_max: int, end_offset: int, *, at_least_one: bool) -> bytes:
        """Return whole batches as `find` finds them; raises OSError."""
        part = self.find(offset, bytes_max, end_offset, at_least_one=at_least_one)
        return b"" if part is None else part.whole()

    def find(self, offset: int, bytes_max: int, end_offset: int, *, at_least_one: bool) -> FilePart | None:
        """
        Find whole batches from the one that holds `offset` up to `end_offset`, in one segment.

        `end_offset` is a batch boundary. Not more than `bytes_max`, unless `at_least_one` asks for a first batch that
        is larger. Raises OSError, MissingRecordsError where nothing is at `offset` although there must be.
        """
        log = self._segments
        segments, bases = log.items, log.bases
        at = log.at(offset)
        known = self._cursors.get(offset)
        while at < len(segments) and bases[at] < end_offset:
            segment = segments[at]
            start = known[1] if known is not None and known[0] is segment else segment.position_of(offset)
            whole = end_offset >= log.end_offset or (at + 1 < len(bases) and bases[at + 1] <= end_offset)
            end = segment.size if whole else segment.position_of(end_offset)
            if start < end:
                return self._find_in(at, segment, start, end, bytes_max, at_least_one=at_least_one)
            at += 1
            if offset < end_offset and start >= segment.size and not log.may_have_gaps:
                behind = bases[at] if at < len(bases) else log.end_offset
                raise MissingRecordsError(segment, max(offset, segment.base_offset), behind)
        return None

    def cold_part(self, offset: int, bytes_max: int) -> ColdPart | None:
        """
        Return what a read from `offset` on would wait for the disk for, None when nothing; `offset` is in the log.

        Once that is loaded there may be more: first come the indexes, then what they lead to. Raises OSError.
        """
        return self._cold.part(offset, bytes_max, self._cursors.get(offset))

    def _find_in(
        self, at: int, segment: Segment, start: int, end: int, bytes_max: int, *, at_least_one: bool
    ) -> FilePart | None:
        bases = self._segments.bases
        if at + 1 < len(bases):
            self._keep_open(segment)
        stop = segment.whole_batches_end(start, end, bytes_max)
        if stop == start:
            if not at_least_one:
                return None
            stop = start + segment.header_at(start).size
        if stop < segment.size:
            # The next batch begins with the offset that this reader will ask for next.
            next_offset = int.from_bytes(segment.files.log.read_at(stop, 8), "big")
        else:
            next_offset = bases[at + 1] if at + 1 < len(bases) else self._segments.end_offset
        if next_offset > segment.base_offset:  # zeros may follow, where the disk has lost what was there
            self._remember(next_offset, segment, stop)
        return FilePart(segment.files, start, stop - start)

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
        segments, bases = self._segments.items, self._segments.bases
        at = self._segments.at(offset)
        last = len(bases) - 1
        segment = segments[at]
        known = self._cursors.get(offset)
        if known is None or known[0] is not segment:
            known = segment, segment.position_of(offset)
            self._remember(offset, *known)
        start = known[1]
        while start >= segment.size and at < last:  # the next one begins behind it
            at, start = at + 1, 0
            segment = segments[at]
        if at < last and end_offset > bases[at + 1]:
            return None
        whole = at == last and end_offset >= self._segments.end_offset
        return (segment.size if whole else segment.position_of(end_offset)) - start

    def _keep_open(self, segment: Segment) -> None:
        """Keep the sealed segments that were read last open, and only them."""
        self._opened.pop(segment, None)
        self._opened[segment] = None
        if len(self._opened) > OPEN_SEALED_MAX:
            oldest = next(iter(self._opened))
            del self._opened[oldest]
            if oldest not in self._unsynced.segments:
                oldest.release()

    def release(self, segments: Iterable[Segment]) -> None:
        """Release those that are sealed and that nobody has read of late."""
        for segment in segments:
            if segment is not self._segments.items[-1] and segment not in self._opened:
                segment.release()

    def forget(self, segments: Iterable[Segment]) -> None:
        """Take note that segments have left the log, or grow again, and that nobody goes on where they did."""
        for segment in segments:
            self._opened.pop(segment, None)
        self._cursors.clear()
