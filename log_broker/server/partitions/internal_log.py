"""Logs that the broker and the services beside it write for themselves."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol
from uuid import uuid4

from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import InternalRecord
from log_broker.records.batch import BatchHeader, batches_in
from log_broker.records.control import EndMarker, read_marker
from log_broker.records.record import Record, iterate_records
from log_broker.server.partitions.ports import EnsuresTopics, Partitions
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster

READ_BYTES = 1024 * 1024


class LogHost(Cluster, Partitions, EnsuresTopics, Protocol):
    """What an internal topic asks of the node."""


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
    """An `InternalLog` over a compacted topic of one partition, which is made when it is first written to."""

    def __init__(self, node: LogHost, topic: str) -> None:
        self._node = node
        self._topic = topic

    @property
    def replica(self) -> PartitionRuntime | None:
        """The partition as this node holds it, leading or not."""
        return self._node.logs.get(self._topic, 0)

    async def ensure(self) -> None:
        """Make the topic if it is not there; raises BrokerError."""
        least = self._node.config.fluvial_replication_factor_min
        await self._node.ensure_topic(
            CreateTopic(
                name=self._topic,
                topic_id=uuid4().hex,
                partitions=1,
                replication_factor=max(self._node.static_config.replication_factor, least),
                overrides={"cleanup.policy": "compact"},
            )
        )

    async def lead(self) -> int:
        """See `InternalLog.lead`."""
        runtime = await self._led()
        end, term = runtime.log_end_offset, runtime.leader_epoch
        while runtime.high_watermark < end:
            await readable(runtime, runtime.high_watermark)
            if not runtime.is_leader or runtime.leader_epoch != term:
                raise self._not_led()
        return term

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None = None) -> int:
        """See `InternalLog.append`."""
        runtime = await self._led()
        if term is not None and runtime.leader_epoch != term:
            raise self._not_led()
        return await runtime.own_appends.records(records)

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """Yield the records up to the high watermark as of now, none where this node has no replica; see `append`."""
        runtime = self.replica
        for record in () if runtime is None else stored_records(runtime, from_offset):
            yield InternalRecord(offset=record.offset, timestamp=record.timestamp, key=record.key, value=record.value)

    async def _led(self) -> PartitionRuntime:
        await self.ensure()
        runtime = self.replica
        if runtime is None:
            raise BrokerError(self._node.absence_of(self._topic, 0), f"{self._topic} is not on this node")
        if not runtime.is_leader:
            raise self._not_led()
        return runtime

    def _not_led(self) -> BrokerError:
        return BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._topic} is led by another node")


async def readable(runtime: PartitionRuntime, offset: int) -> None:
    """Wait until there is something to read behind `offset`, or the partition goes away or changes its leader."""
    change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not change.done():
            change.set_result(None)

    cancel = runtime.on_readable(offset, tell)
    try:
        await change
    finally:
        cancel()
