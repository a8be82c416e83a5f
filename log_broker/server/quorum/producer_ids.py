"""Ids for idempotent producers, reserved in blocks so that one write serves a thousand producers."""

import asyncio
import logging
from typing import Protocol

from log_broker.core.cluster import controller
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.ports import Cluster, Process
from log_broker.server.quorum.authority import Authority
from log_broker.wire.apis import ApiKey

_log = logging.getLogger(__name__)

# With so few left the next block is asked for, so that producers come up while there is no controller for a moment.
LEFT_MIN = controller.PRODUCER_ID_BLOCK // 10


class IdsHost(Cluster, Process, Protocol):
    """What handing out ids asks of the node."""

    @property
    def authority(self) -> Authority: ...


class ProducerIds:
    """
    Hands out ids of blocks that the metadata log says are taken; a node asks the controller for its own.

    What a process does not use of its blocks is lost with it: an id is never given out twice, not even after a kill.
    """

    def __init__(self, node: IdsHost) -> None:
        self._node = node
        self._block = range(0)
        self._next_block = range(0)
        self._turn = asyncio.Lock()
        self.is_asking = False

    async def take(self) -> int:
        """Return an id; raises BrokerError(COORDINATOR_LOAD_IN_PROGRESS), to repeat, when no block can be had."""
        async with self._turn:
            if not self._block:
                self._block, self._next_block = self._next_block, range(0)
            if not self._block:
                self._block = await self._fetch()
            taken, self._block = self._block[0], self._block[1:]
        if len(self._block) < LEFT_MIN and not self._next_block and not self.is_asking:
            self.is_asking = True
            self._node.run(self._ask_ahead())
        return taken

    async def reserve(self) -> range:
        """Take a block out of those that are left, on the controller itself; raises BrokerError."""
        block = range(0)

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            nonlocal block
            record = controller.reserve_producer_ids(image)
            block = range(image.next_producer_id, record.end)
            return [record]

        await self._node.authority.submit(decide)
        return block

    async def _ask_ahead(self) -> None:
        try:
            self._next_block = await self._fetch()
        except BrokerError as error:
            _log.info("no producer ids for later: %s", error)  # the next producer asks again
        finally:
            self.is_asking = False

    async def _fetch(self) -> range:
        try:
            return await (self.reserve() if self._node.authority.is_active else self._ask_controller())
        except BrokerError as error:
            message = f"no producer ids can be had: {error}"
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message) from error

    async def _ask_controller(self) -> range:
        node_id = self._node.config.node_id
        answer = await self._node.authority.ask_controller(
            ApiKey.ALLOCATE_PRODUCER_IDS,
            0,
            {"broker_id": node_id, "broker_epoch": self._node.cluster.brokers[node_id].epoch},
        )
        if answer.error_code:
            raise BrokerError(ErrorCode(answer.error_code), "the controller gave no producer ids")
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)
