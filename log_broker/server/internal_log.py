"""Logs that the broker and the services beside it write for themselves."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import InternalRecord
from log_broker.records.batch import BatchHeader, batches_in
from log_broker.records.control import EndMarker, read_marker
from log_broker.records.record import Record, iterate_records
from log_broker.server.partition import PartitionRuntime

READ_BYTES = 1024 * 1024


def stored_records(runtime: PartitionRuntime, from_offset: int = 0) -> Iterator[Record]:
    """Yield the records of a partition up to its high watermark now; raises BrokerError when they cannot be read."""
    for _, content in stored_entries(runtime, from_offset):
        if isinstance(content, Record):
            yield content


def stored_entries(
    runtime: PartitionRuntime, from_offset: int = 0, end: int | None = None
) -> Iterator[tuple[BatchHeader, Record | EndMarker]]:
    """Yield records and the markers of transactions, each with the header of its batch; errors as above."""
    offset = max(from_offset, runtime.log_start_offset)
    end = runtime.high_watermark if end is None else end
    while offset < end:
        result = runtime.read(offset, READ_BYTES)
        if result.error is not ErrorCode.NONE or not result.size:
            error = result.error or ErrorCode.KAFKA_STORAGE_ERROR
            raise BrokerError(error, f"{runtime.topic}-{runtime.partition} cannot be read at offset {offset}")
        data = b"".join(result.chunks)
        for position, header in batches_in(data):
            batch = data[position : position + header.size]
            if not header.is_control:
                yield from ((header, record) for record in iterate_records(batch) if offset <= record.offset < end)
            elif (marker := read_marker(batch)) is not None:
                yield header, marker
            offset = header.last_offset + 1


class TopicLog:
    """An `InternalLog` over a topic of one partition, which is made when it is first used."""

    def __init__(self, runtime: Callable[[], Awaitable[PartitionRuntime]]) -> None:
        self._runtime = runtime

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        """Append as one batch and return the first offset; raises BrokerError."""
        return await (await self._runtime()).append_records(records)

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """Yield the records up to the high watermark as of now; raises BrokerError."""
        for record in stored_records(await self._runtime(), from_offset):
            yield InternalRecord(offset=record.offset, timestamp=record.timestamp, key=record.key, value=record.value)
