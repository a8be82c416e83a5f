"""
Finding records by their timestamps, as ListOffsets asks for it.
"""

import asyncio
from contextlib import suppress
from functools import partial

from log_broker.core.partition.admission import CHECKED_AT_ONCE_BYTES_MAX, CHECKED_AT_ONCE_MAX
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import read_header
from log_broker.records.compression import DecompressionBoundError
from log_broker.records.record import first_of_time
from log_broker.server.partitions.replica import Replica
from log_broker.storage.time_search import batch_of_time, latest_timestamp

OPENED_FOR_TIME_MAX = 8  # batches in which a search by time looks for a record


class TimeSearch:
    """Looks through the log of one replica, a turn of the event loop at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """
        Return (offset, timestamp) of the first record that is at least as late; raises OSError and BrokerError.

        Where headers name times that none of their records has, it is not looked into batches for ever: then this is
        the first offset of the first of them, which lies before every record that is so late.
        """
        replica = self._replica
        offset = replica.state.log_start_offset
        first: tuple[int, int] | None = None
        opened = 0
        while True:
            end_offset = replica.state.high_watermark
            step = batch_of_time(replica.log.segments, timestamp_ms, from_offset=offset, end_offset=end_offset)
            if step is None:
                return None
            batch, next_offset = step
            if batch:
                found = await self._first_of_time(batch, timestamp_ms, offset, end_offset)
                if found is not None:
                    return found
                if first is None:
                    header = read_header(batch)
                    first = max(header.base_offset, offset), header.max_timestamp
                opened += 1
                if opened >= OPENED_FOR_TIME_MAX:
                    return first
            else:
                await asyncio.sleep(0)
            if replica.is_closed:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition was closed")
            offset = next_offset

    async def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp; raises OSError and BrokerError."""
        latest = latest_timestamp(self._replica.log.segments)
        while latest is None:
            await asyncio.sleep(0)
            latest = latest_timestamp(self._replica.log.segments)
        return await self.offset_for_timestamp(latest) if latest >= 0 else None

    async def _first_of_time(
        self, batch: bytes, timestamp_ms: int, from_offset: int, end_offset: int
    ) -> tuple[int, int] | None:
        search = partial(first_of_time, batch, timestamp_ms, from_offset, end_offset)
        if read_header(batch).record_count <= CHECKED_AT_ONCE_MAX:
            with suppress(DecompressionBoundError):
                return search(bytes_max=CHECKED_AT_ONCE_BYTES_MAX)
        found: tuple[int, int] | None = await self._replica.aside(search)
        return found
