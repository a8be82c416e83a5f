"""
Searching the segments of a log by time, in steps that each take a bounded part of an event loop's turn.
"""

from bisect import bisect_right
from collections.abc import Sequence

from log_broker.storage.segment import Segment, scan

HEADERS_AT_ONCE_MAX = 5_000  # of batches that a search reads before others have their turn


def batch_of_time(
    segments: Sequence[Segment], timestamp: int, *, from_offset: int, end_offset: int
) -> tuple[bytes, int] | None:
    """
    Look for a batch in [from_offset, end_offset) whose header says that it has a record so late.

    Returns (the batch, the offset behind it), None when there is none. A search that takes long returns (no bytes,
    the offset to go on from) in between. Raises OSError.
    """
    looked = 0
    first = bisect_right(segments, from_offset, key=lambda segment: segment.base_offset) - 1
    for segment in segments[max(first, 0) :]:
        if not segment.size:
            continue
        if not segment.knows_times:
            if looked:
                return b"", max(segment.base_offset, from_offset)
            looked = HEADERS_AT_ONCE_MAX
        if segment.max_timestamp[0] < timestamp:
            continue
        start = segment.position_of(max(segment.search_start(timestamp), from_offset))
        for position, header in scan(segment.file, start, segment.size, read_bytes=64 * 1024):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp >= timestamp:
                return segment.file.read_at(position, header.size), header.last_offset + 1
            looked += 1
            if looked >= HEADERS_AT_ONCE_MAX:
                return b"", header.last_offset + 1
    return None


def latest_timestamp(segments: Sequence[Segment]) -> int | None:
    """
    Return the largest timestamp that a batch's header names, -1 when there is none. Raises OSError.

    None says that one more segment was looked at and that it is to be asked again.
    """
    for segment in segments:
        if segment.size and not segment.knows_times:
            _ = segment.max_timestamp
            return None
    return max((segment.max_timestamp[0] for segment in segments if segment.size), default=-1)
