"""
Finding batches that a disk has changed, and putting a good copy in the place of one.

A batch was checked when it came in. What is read soon after comes out of memory; what lies in a sealed segment or was
there when the log was opened may have come from the disk again, and its checksums are looked at before anybody gets it.
"""

import struct
from bisect import bisect_right
from typing import NamedTuple

from crc32c import crc32c

from log_broker.records.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, MIN_LENGTH, Buffer, read_header
from log_broker.storage.log import PartitionLog
from log_broker.storage.segment import Segment

_FRONT = struct.Struct(">qiibIhi")  # of a batch's header: up to the last offset delta
_CHECKED_FROM = 21  # the checksum covers the attributes and everything behind them


class Intact(NamedTuple):
    """How many bytes from the front are whole, intact batches, and the offset behind the last of them, -1 for none."""

    size: int
    next_offset: int


def intact_part(data: Buffer) -> Intact:
    """Check every batch of what was read from a log."""
    view = memoryview(data)
    position, end, next_offset = 0, len(view), -1
    while position + HEADER_BYTES <= end:
        base_offset, length, _, magic, crc, _, last_offset_delta = _FRONT.unpack_from(view, position)
        behind = position + length + LENGTH_OVERHEAD_BYTES
        if (
            magic != MAGIC
            or length < MIN_LENGTH
            or behind > end
            or crc32c(view[position + _CHECKED_FROM : behind]) != crc
        ):
            break
        position, next_offset = behind, base_offset + last_offset_delta + 1
    return Intact(position, next_offset)


def replace_batch(log: PartitionLog, offset: int, batch: Buffer) -> Segment | None:
    """
    Write an intact batch over the damaged one that holds `offset`; return the segment, which is to be synced.

    None, and nothing is written, where it does not fit there exactly: then it is not the same batch. Raises OSError.
    """
    good = read_header(batch)
    segments = log.segments
    segment = segments[max(bisect_right([each.base_offset for each in segments], offset) - 1, 0)]
    position = segment.position_of(good.base_offset)
    if position + good.size > segment.size:
        return None
    if segment.header_at(position).base_offset != good.base_offset:
        return None
    behind = position + good.size
    if behind < segment.size:
        following = segment.header_at(behind)
        if following.magic != MAGIC or following.base_offset <= good.last_offset:
            return None
    segment.file.write_at(position, [batch])
    return segment
