"""
The registry's state on a node that does not serve it: read from `_schemas` on the first node, and kept up to date.

So that records are checked wherever their partition is led. A schema is known here a moment after it was registered,
as soon as the waiting Fetch has brought it; until then its records are refused like those of any unknown schema.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import structlog

from fluvial.registry.registry import SCHEMAS_TOPIC, Registry
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import InternalRecord
from log_broker.records.batch import batches_in
from log_broker.records.record import iterate_records
from log_broker.server.peers import PeerLink
from log_broker.wire.apis import ApiKey

FETCH_VERSION = 12
FETCH_BYTES = 1 << 20
WAIT_MS = 5_000
RETRY_SECONDS = 0.25

log = structlog.get_logger(__name__)


class RemoteSchemasLog:
    """The topic `_schemas` of another node, for reading only. `end` is where the last read has stopped."""

    def __init__(self, address: str) -> None:
        self.end = 0
        self._link = PeerLink(address)

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        """Refuse: schemas are registered on the node that serves the registry."""
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{SCHEMAS_TOPIC} is written by the first node")

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """Yield the records up to the high watermark; none while the topic does not exist. Raises BrokerError."""
        self.end = from_offset
        while True:
            found = await self._fetch(wait_ms=0)
            if found is None:
                return
            records = found.records or b""
            for position, header in batches_in(records):
                for record in iterate_records(records[position : position + header.size]):
                    if record.offset >= from_offset:
                        yield InternalRecord(
                            offset=record.offset, timestamp=record.timestamp, key=record.key, value=record.value
                        )
                self.end = header.last_offset + 1
            if not records or self.end >= found.high_watermark:
                return

    async def wait(self) -> bool:
        """Wait for records behind `end`, for some seconds; False when there is no such topic."""
        return await self._fetch(wait_ms=WAIT_MS) is not None

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()

    async def _fetch(self, *, wait_ms: int) -> Any:
        wanted = {"partition": 0, "fetch_offset": self.end, "partition_max_bytes": FETCH_BYTES}
        answer = await self._link.ask(
            ApiKey.FETCH,
            FETCH_VERSION,
            {
                "max_wait": wait_ms,
                "min_bytes": 1,
                "max_bytes": FETCH_BYTES,
                "topics": ({"topic": SCHEMAS_TOPIC, "partitions": (wanted,)},),
                "forgotten_topics_data": (),
            },
        )
        (partition,) = answer.responses[0].partitions
        if partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if partition.error_code:
            raise BrokerError(ErrorCode(partition.error_code), f"{SCHEMAS_TOPIC} cannot be followed")
        return partition


async def follow(registry: Registry, schemas: RemoteSchemasLog) -> None:
    """Keep an opened `registry` up to date with the log it was made over, until cancelled."""
    reachable = True
    with contextlib.closing(schemas):
        while True:
            try:
                if not await schemas.wait():
                    await asyncio.sleep(RETRY_SECONDS)
                await registry.open()
                reachable = True
            except BrokerError as error:
                if reachable:
                    log.warning("schemas_not_followed", reason=str(error))
                reachable = False
                await asyncio.sleep(RETRY_SECONDS)
