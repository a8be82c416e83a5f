"""
Repairs a replica whose disk has changed a batch: an intact copy is fetched from another replica and put in its place.

Replicas hold the same batches byte for byte, so the copy fits exactly where the damaged one stands, and neither the
ISR nor an offset changes by it. Where no other replica has the batch as it was (it is the only one, or compaction has
rewritten it elsewhere) the damage stays: readers get KAFKA_STORAGE_ERROR there rather than bytes that nobody wrote.
"""

import asyncio
import logging
from typing import Protocol

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import HEADER_BYTES, read_header
from log_broker.server.net.ports import HasPeers
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster, HasEvents, Process
from log_broker.storage.damage import intact_part
from log_broker.wire.apis import ApiKey

_log = logging.getLogger(__name__)

FETCH_VERSION = 12  # answered by followers too
FETCH_SECONDS_MAX = 10.0
PAUSE_SECONDS = 5.0  # between two tries at the same damage, which every read reports again
BUSY_SECONDS = 0.05
BUSY_TRIES = 100


class RepairHost(Cluster, HasEvents, HasPeers, Process, Protocol):
    """What repairing logs asks of the node."""


class LogRepair:
    """The repairs of one node; at most one of each partition at a time."""

    def __init__(self, node: RepairHost) -> None:
        self.repaired = 0
        self._node = node
        self._under_way: set[PartitionRuntime] = set()
        self._tried: dict[PartitionRuntime, float] = {}

    def damaged(self, runtime: PartitionRuntime, offset: int) -> None:
        """Begin to repair the batch that holds `offset`, unless that was just tried."""
        now = self._node.loop.time()
        if runtime in self._under_way or now < self._tried.get(runtime, 0.0):
            return
        _log.error("%s-%d: the disk has changed the batch at offset %d", runtime.topic, runtime.partition, offset)
        self._under_way.add(runtime)
        self._node.run(self._repair(runtime, offset))

    async def _repair(self, runtime: PartitionRuntime, offset: int) -> None:
        node, name = self._node, f"{runtime.topic}-{runtime.partition}"
        try:
            for node_id in self._others(runtime):
                batch = await self._copy_from(node_id, runtime, offset)
                if batch is not None and await self._put(runtime, offset, batch):
                    self.repaired += 1
                    text = f"{name}: the batch at offset {offset} was repaired with the copy of node {node_id}"
                    _log.warning("%s", text)
                    node.events.note(
                        "repaired",
                        text,
                        topic=runtime.topic,
                        partition=runtime.partition,
                        offset=offset,
                        source=node_id,
                    )
                    return
            _log.error("%s: no other replica has the batch at offset %d", name, offset)
            self._tried[runtime] = node.loop.time() + PAUSE_SECONDS
        finally:
            self._under_way.discard(runtime)

    def _others(self, runtime: PartitionRuntime) -> list[int]:
        """The other replicas that are up, those in sync first."""
        node = self._node
        topic = node.cluster.topics.get(runtime.topic)
        if topic is None or runtime.partition >= len(topic.partitions):
            return []
        image = topic.partitions[runtime.partition]
        others = [each for each in image.replicas if each != node.config.node_id and node.cluster.is_alive(each)]
        return sorted(others, key=lambda each: each not in image.isr)

    async def _copy_from(self, node_id: int, runtime: PartitionRuntime, offset: int) -> memoryview | None:
        """Return the batch that holds `offset` as another replica has it, if that is intact."""
        partition = {"partition": runtime.partition, "fetch_offset": offset, "partition_max_bytes": 1}
        values = {
            "max_wait": 0,
            "min_bytes": 1,
            "topics": ({"topic": runtime.topic, "partitions": (partition,)},),
            "forgotten_topics_data": (),
        }
        try:
            link = self._node.peers.link(node_id, "repair")
            answer = await link.ask(ApiKey.FETCH, FETCH_VERSION, values, timeout_seconds=FETCH_SECONDS_MAX)
            found = answer.responses[0].partitions[0]
        except (BrokerError, IndexError) as error:
            _log.info("node %d gives no copy: %s", node_id, error)
            return None
        if found.error_code != ErrorCode.NONE or not found.records or len(found.records) < HEADER_BYTES:
            return None
        header = read_header(found.records)
        batch = memoryview(found.records)[: header.size]
        holds = header.base_offset <= offset <= header.last_offset
        return batch if holds and intact_part(batch).size == len(batch) else None

    async def _put(self, runtime: PartitionRuntime, offset: int, batch: memoryview) -> bool:
        """Write the copy; a log that is being written to has moments in which it is not."""
        done: asyncio.Future[BaseException | None] = self._node.loop.create_future()
        for _ in range(BUSY_TRIES):
            if runtime.leading.patch(offset, batch, done.set_result):
                error = await done
                if error is not None:
                    _log.error("%s-%d could not be repaired: %s", runtime.topic, runtime.partition, error)
                return error is None
            await asyncio.sleep(BUSY_SECONDS)
        return False
