"""
The two sparse indexes of a segment, in Kafka's file formats.

Offset index: 8 bytes an entry, the last offset of a batch relative to the segment's base and the position where that
batch starts. Time index: 12 bytes an entry, the largest timestamp so far and the relative offset of a record with it.
Both rise strictly and both can be made again from the segment, so a damaged index costs a scan and nothing else.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import islice
from operator import le, lt
from typing import Self

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
RELATIVE_OFFSET_MAX = 2**31 - 1
_LOW = 0 if sys.byteorder == "little" else 1  # which half of a number comes first in memory
_SWAP = sys.byteorder == "little"  # the files are big-endian


class OffsetIndex:
    """Where batches start. Every position in it is the start of a whole batch."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")

    def append(self, relative_last_offset: int, position: int) -> None:
        self.offsets.append(relative_last_offset)
        self.positions.append(position)

    def entry_before(self, relative_offset: int) -> tuple[int, int] | None:
        """Return (last offset, start) of a batch from which a scan forward finds this offset; None: from the front."""
        at = bisect_right(self.offsets, relative_offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else None

    def boundary_before(self, position: int, after: int) -> tuple[int, int] | None:
        """Return (last offset, start) of the last known batch that starts in (after, position], if there is one."""
        at = bisect_right(self.positions, position) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 and self.positions[at] > after else None

    @property
    def last_position(self) -> int:
        """Where the batch of the last entry starts; 0 when there is none."""
        return self.positions[-1] if self.positions else 0

    def truncate(self, position: int) -> None:
        """Drop entries of batches at or behind `position`."""
        at = bisect_left(self.positions, position)
        del self.offsets[at:]
        del self.positions[at:]

    def to_bytes(self) -> bytes:
        entries = array("I", [0]) * (2 * len(self.offsets))
        entries[0::2] = self.offsets
        entries[1::2] = self.positions
        if _SWAP:
            entries.byteswap()
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, segment_bytes: int) -> Self | None:
        """Read a file; None when it cannot be the index of a segment of this size."""
        if len(content) % OFFSET_ENTRY_BYTES:
            return None
        entries = array("I", content)
        if _SWAP:
            entries.byteswap()
        index = cls()
        index.offsets = entries[0::2]
        index.positions = entries[1::2]
        if not _rises(index.offsets) or not _rises(index.positions):
            return None
        if index.positions and (index.positions[-1] >= segment_bytes or index.offsets[-1] > RELATIVE_OFFSET_MAX):
            return None
        return index


class TimeIndex:
    """The largest timestamp up to a point, for searches by time and for retention."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if it is later than all before it."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def entry_before(self, timestamp: int) -> tuple[int, int] | None:
        """Return (timestamp, relative offset) of an entry before all records that are at least this late, if any."""
        at = bisect_left(self.timestamps, timestamp) - 1
        return (self.timestamps[at], self.offsets[at]) if at >= 0 else None

    @property
    def last(self) -> tuple[int, int]:
        """(largest timestamp, its relative offset); (-1, 0) when nothing is known."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else (-1, 0)

    def truncate(self, relative_offset: int) -> None:
        """Drop entries of records at or behind this offset."""
        at = bisect_left(self.offsets, relative_offset)
        del self.timestamps[at:]
        del self.offsets[at:]

    def to_bytes(self) -> bytes:
        halves = array("I", self.timestamps.tobytes())
        words = array("I", [0]) * (3 * len(self.offsets))
        words[0::3] = halves[1 - _LOW :: 2]
        words[1::3] = halves[_LOW::2]
        words[2::3] = self.offsets
        if _SWAP:
            words.byteswap()
        return words.tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Read a file; None when it cannot be a time index."""
        if len(content) % TIME_ENTRY_BYTES:
            return None
        words = array("I", content)
        if _SWAP:
            words.byteswap()
        halves = array("I", [0]) * (2 * (len(words) // 3))
        halves[_LOW::2] = words[1::3]
        halves[1 - _LOW :: 2] = words[0::3]
        index = cls()
        index.timestamps.frombytes(halves.tobytes())
        index.offsets = words[2::3]
        if not _rises(index.timestamps) or not _in_order(index.offsets, le):
            return None
        return index


def _rises(values: "array[int]") -> bool:
    return _in_order(values, lt)


def _in_order(values: "array[int]", goes_before: Callable[[int, int], bool]) -> bool:
    """Whether each value and the next are in that order; an index of a full segment has hundreds of thousands."""
    return all(map(goes_before, values, islice(values, 1, None)))
