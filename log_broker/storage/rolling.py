"""
When a log rolls: the active segment is full or old enough for a new one to begin.
"""

import os
from typing import Protocol
from zlib import crc32

from log_broker.core.partition.protocol import PendingBatch
from log_broker.storage.index import RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES
from log_broker.storage.segment import Segment


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


def should_roll(active: Segment, batch_bytes: int, pending: PendingBatch, now_ms: int, limits: SegmentLimits) -> bool:
    """Whether a batch, with those planned before it `batch_bytes` long, belongs into a new segment."""
    last_offset = pending.last_offset
    if active.size == 0:
        return last_offset - active.base_offset > RELATIVE_OFFSET_MAX  # a leader has compacted all between
    if (
        active.size + batch_bytes > limits.segment_bytes
        or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
        or active.index_bytes > limits.segment_index_bytes - TIME_ENTRY_BYTES
    ):
        return True
    max_timestamp, first_timestamp = pending.max_timestamp, active.first_timestamp
    if max_timestamp >= 0 and first_timestamp is not None and first_timestamp >= 0:
        age_ms = max_timestamp - first_timestamp
    else:
        age_ms = now_ms - active.created_ms
    return age_ms > limits.segment_ms_max - (_jitter_ms(active, limits) if limits.segment_jitter_ms else 0)


def _jitter_ms(active: Segment, limits: SegmentLimits) -> int:
    """
    Return how much earlier than others this segment ends, so that not all of a topic's partitions roll at once.

    It looks random and is always the same for one segment, which needs no generator and no memory over a restart.
    """
    return crc32(os.fsencode(active.path())) % min(limits.segment_jitter_ms, limits.segment_ms_max)
