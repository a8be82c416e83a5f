"""Ids for idempotent producers, reserved in blocks so that one write serves a thousand producers."""

import asyncio
from typing import TYPE_CHECKING

from log_broker.core import controller
from log_broker.core.cluster import ClusterImage
from log_broker.core.cluster_records import MetadataRecord

if TYPE_CHECKING:
    from log_broker.server.node import Node


class ProducerIds:
    """
    Hands out ids of a block that the metadata log says is taken.

    What a process does not use of its block is lost with it: an id is never given out twice, not even after a kill.
    """

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._next = 0
        self._end = 0
        self._turn = asyncio.Lock()

    async def take(self) -> int:
        """Return an id; raises BrokerError when no block can be reserved."""
        async with self._turn:
            if self._next >= self._end:
                await self._reserve()
            self._next += 1
            return self._next - 1

    async def _reserve(self) -> None:
        block = range(0)

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            nonlocal block
            record = controller.reserve_producer_ids(image)
            block = range(image.next_producer_id, record.end)
            return [record]

        await self._node.authority.submit(decide)
        self._next, self._end = block.start, block.stop
