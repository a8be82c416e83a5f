"""
The segments of one log in the order of their offsets, of which the last one, the active, grows.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from log_broker.records.batch import LEADER_EPOCH_OFFSET, BatchHeader
from log_broker.storage.segment import Segment, scan


class Segments:
    """
    The list, from which segments leave at the front and at the end.

    `bases` are their base offsets, for searches. `end_offset` lies behind the last batch, `may_have_gaps` says that
    recovery was told to expect offsets missing in the active segment.
    """

    __slots__ = ("bases", "end_offset", "items", "may_have_gaps")

    def __init__(self, items: list[Segment], end_offset: int, *, may_have_gaps: bool) -> None:
        assert items, "a log has an active segment"
        self.items = items
        self.bases = [segment.base_offset for segment in items]
        self.end_offset = end_offset
        self.may_have_gaps = may_have_gaps

    @property
    def active(self) -> Segment:
        return self.items[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.items)

    def at(self, offset: int) -> int:
        """Return which segment holds `offset`; the first for what lies before the log."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def holding(self, offset: int) -> Segment:
        """Return the segment that holds `offset`."""
        return self.items[self.at(offset)]

    def sealed(self) -> Iterator[tuple[Segment, int]]:
        """Yield (segment, its end) of all but the active one."""
        return zip(self.items[:-1], self.bases[1:], strict=True)

    def add(self, segment: Segment) -> None:
        """Take in a new active segment."""
        self.items.append(segment)
        self.bases.append(segment.base_offset)

    def replace(self, first: int, count: int, by: Sequence[Segment]) -> list[Segment]:
        """Let `by` stand where `count` segments stood from the place `first` on; return those."""
        gone = self.items[first : first + count]
        self.items[first : first + count] = by
        self.bases[first : first + count] = [segment.base_offset for segment in by]
        return gone

    def headers_from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the headers of all batches that end at `offset` or behind, with each control batch itself."""
        for at in range(self.at(offset), len(self.items)):
            segment = self.items[at]
            if segment.size:
                for position, header in scan(segment.file, segment.position_of(offset), segment.size):
                    yield header, segment.file.read_at(position, header.size) if header.is_control else b""

    def set_epoch(self, offset: int, epoch: int) -> None:
        """Write the leader epoch of the batch at `offset`, on the disk too; raises OSError."""
        segment = self.holding(offset)
        position = segment.position_of(offset)
        segment.file.write_at(position + LEADER_EPOCH_OFFSET, [epoch.to_bytes(4, "big", signed=True)])
        segment.file.sync()
