"""
The topic `_schemas` as the registry of any node sees it: written where it is led, read from there, and followed.

A node that holds a replica begins with that, so that its registry answers while the leader is away. What is new comes
from the leader, which has every schema that was ever answered.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import structlog

from fluvial.registry import errors
from fluvial.registry.model.registry import SCHEMAS_TOPIC, Registry
from log_broker.core.cluster.image import BrokerImage
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import InternalRecord
from log_broker.records.batch import batches_in
from log_broker.records.record import iterate_records
from log_broker.server.net.ports import HasPeers
from log_broker.server.partitions.internal_log import LogHost, TopicLog, readable
from log_broker.wire.apis import ApiKey

FETCH_VERSION = 12
FETCH_BYTES = 1 << 20
FETCH_SECONDS_MAX = 3.0
WAIT_MS = 1_000  # after which it is looked for the leader again
RETRY_SECONDS = 0.25
BROKER_RESOURCE = 4
URL_SETTING = "fluvial.registry.url"

log = structlog.get_logger(__name__)


class SchemasHost(HasPeers, LogHost, Protocol):
    """What the registry asks of the node that it runs on."""

    @property
    def registry_url(self) -> str: ...


class SchemasLog:
    """The registry's `InternalLog` on a node of a cluster, and who leads it. Not usable before `attach`."""

    def __init__(self) -> None:
        self._node: SchemasHost
        self._local: TopicLog
        self._urls: dict[tuple[int, int], str] = {}  # by the leader's id and its registration

    def attach(self, node: SchemasHost) -> None:
        """Take the node that this is on; the registry is made before it, because the node asks it about records."""
        self._node = node
        self._local = TopicLog(node, SCHEMAS_TOPIC)

    async def lead(self) -> int:
        """See `InternalLog.lead`."""
        return await self._local.lead()

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None = None) -> int:
        """See `InternalLog.append`."""
        return await self._local.append(records, term)

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """Yield what the leader has up to its high watermark; none while there is no topic. Raises BrokerError."""
        if SCHEMAS_TOPIC not in self._node.cluster.topics:
            return
        leader = self._leader()
        if leader.node_id == self._node.config.node_id:
            await self._local.lead()
            async for record in self._local.read(from_offset):
                yield record
            return
        position = from_offset
        while True:
            found = await self._fetch(leader, position, wait_ms=0, purpose="schemas")
            records = found.records or b""
            for at, header in batches_in(records):
                for each in iterate_records(records[at : at + header.size]):
                    if each.offset >= position:
                        yield InternalRecord(
                            offset=each.offset, timestamp=each.timestamp, key=each.key, value=each.value
                        )
                position = header.last_offset + 1
            if not records or position >= found.high_watermark:
                return

    async def read_replica(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        """Yield what this node itself holds and knows to be committed; raises BrokerError."""
        async for record in self._local.read(from_offset):
            yield record

    async def wait(self, offset: int) -> bool:
        """Wait for records from `offset` on, for a second or so; say whether there are any. Raises BrokerError."""
        if SCHEMAS_TOPIC not in self._node.cluster.topics:
            await asyncio.sleep(RETRY_SECONDS)
            return False
        leader = self._leader()
        if leader.node_id != self._node.config.node_id:
            found = await self._fetch(leader, offset, wait_ms=WAIT_MS, purpose="schemas-fetch")
            return bool(found.records)
        replica = self._local.replica
        if replica is None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{SCHEMAS_TOPIC} is not on the node that leads it")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_MS / 1000):
                await readable(replica, max(offset, replica.high_watermark))
        return replica.high_watermark > offset

    # Who writes: what `forwarding` asks.

    @property
    def is_led_here(self) -> bool:
        """Whether this node is the one that writes."""
        leader = self._node.cluster.leader_of(SCHEMAS_TOPIC, 0)
        return leader is not None and leader.node_id == self._node.config.node_id

    async def primary_url(self) -> str:
        """Return where the node serves its registry that writes now; raises RefusedError when there is none."""
        try:
            await self._local.ensure()
            leader = self._leader()
            known = self._urls.get((leader.node_id, leader.epoch))
            if known is None:
                known = self._urls[leader.node_id, leader.epoch] = await self._url_of(leader)
        except BrokerError as error:
            raise errors.unknown_primary(str(error)) from error
        return known

    async def _url_of(self, leader: BrokerImage) -> str:
        if leader.node_id == self._node.config.node_id:
            return self._node.registry_url
        asked = {
            "resource_type": BROKER_RESOURCE,
            "resource_name": str(leader.node_id),
            "configuration_keys": (URL_SETTING,),
        }
        answer = await self._node.peers.link(leader.node_id, "schemas").ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {"resources": (asked,), "include_synonyms": False, "include_documentation": False},
            timeout_seconds=FETCH_SECONDS_MAX,
        )
        for result in answer.results:
            for config in result.configs:
                if config.name == URL_SETTING and config.value:
                    url: str = config.value
                    return url
        raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {leader.node_id} serves no registry")

    def _leader(self) -> BrokerImage:
        leader = self._node.cluster.leader_of(SCHEMAS_TOPIC, 0)
        if leader is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{SCHEMAS_TOPIC} has no leader now")
        return leader

    async def _fetch(self, leader: BrokerImage, offset: int, *, wait_ms: int, purpose: str) -> Any:
        wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
        answer = await self._node.peers.link(leader.node_id, purpose).ask(
            ApiKey.FETCH,
            FETCH_VERSION,
            {
                "max_wait": wait_ms,
                "min_bytes": 1,
                "max_bytes": FETCH_BYTES,
                "topics": ({"topic": SCHEMAS_TOPIC, "partitions": (wanted,)},),
                "forgotten_topics_data": (),
            },
            timeout_seconds=FETCH_SECONDS_MAX,
        )
        (partition,) = answer.responses[0].partitions
        if partition.error_code:
            raise BrokerError(ErrorCode(partition.error_code), f"{SCHEMAS_TOPIC} cannot be read from its leader")
        return partition


async def follow(registry: Registry, schemas: SchemasLog) -> None:
    """Keep a `registry` up to date with the log it was made over, until cancelled."""
    reachable = True
    while True:
        try:
            if await schemas.wait(registry.next_offset):
                await registry.refresh()
            reachable = True
        except BrokerError as error:
            if reachable:
                log.warning("schemas_not_followed", reason=str(error))
            reachable = False
            await asyncio.sleep(RETRY_SECONDS)
