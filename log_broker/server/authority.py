"""
Where decisions about the cluster are made: here, on the controller, or over there, as the other nodes see it.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from log_broker.core import controller
from log_broker.core.cluster import ClusterImage
from log_broker.core.cluster_records import MetadataRecord
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.metadata_log import Decide, MetadataLog
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext
    from log_broker.server.node import Node

SESSION_MS = 9_000  # broker.session.timeout.ms
SESSION_CHECK_SECONDS = 1.0


class Authority(Protocol):
    """What a node asks of the controller, wherever that runs."""

    async def cluster_id(self) -> str | None:
        """Return the id of the cluster to belong to, None to keep one's own."""
        ...

    async def start(self) -> None:
        """Register this node and have its image up to date."""
        ...

    async def stop(self) -> None: ...

    async def create_topic(self, command: controller.CreateTopic) -> None:
        """Raises BrokerError."""
        ...

    async def submit(self, decide: Decide) -> None:
        """Decide on the controller itself; on another node BrokerError(NOT_CONTROLLER)."""
        ...

    async def forward(self, context: "RequestContext") -> bytes:
        """Pass a request on and return the answer from behind the correlation id; raises BrokerError."""
        ...

    async def ask_controller(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """Send a request of this node's own to the controller, on another node; raises BrokerError."""
        ...


class LocalAuthority:
    """The controller itself."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._log: MetadataLog
        self._incarnation = uuid4().hex
        self._heard_ms: dict[int, int] = {}
        self._session_check: asyncio.TimerHandle | None = None

    async def cluster_id(self) -> str | None:
        return self._node.static_config.cluster_id

    async def start(self) -> None:
        node = self._node
        self._log = MetadataLog(node.metadata_partition(), node.cluster, node.apply_image)
        self._log.load()
        node.remove_strays()
        now_ms = node.clock_ms()
        # Those that were alive before a restart get a whole session to be heard of.
        self._heard_ms = {broker.node_id: now_ms for broker in node.cluster.alive_brokers()}
        await self.register(node.static_config.node_id, node.advertised_host, node.port, self._incarnation)
        self._check_sessions()

    async def stop(self) -> None:
        if self._session_check is not None:
            self._session_check.cancel()

    async def create_topic(self, command: controller.CreateTopic) -> None:
        await self._log.submit(lambda image: [controller.create_topic(image, command, self._node.config)])

    async def submit(self, decide: Decide) -> None:
        await self._log.submit(decide)

    async def forward(self, context: "RequestContext") -> bytes:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "the controller has nobody to pass a request on to")

    async def ask_controller(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "the controller has nobody to ask")

    async def register(self, node_id: int, host: str, port: int, incarnation: str) -> int:
        """Take in a broker that came up and return its epoch; raises BrokerError."""
        await self._log.submit(lambda _: [controller.register_broker(node_id, host, port, incarnation)])
        self._heard_ms[node_id] = self._node.clock_ms()
        return self._node.cluster.brokers[node_id].epoch

    async def heartbeat(self, node_id: int, epoch: int, *, leaves: bool) -> bool:
        """Note that a broker is alive, or that it leaves; return whether it is fenced. Raises BrokerError."""
        broker = self._node.cluster.brokers.get(node_id)
        if broker is None:
            raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"node {node_id} has never registered")
        if broker.epoch != epoch:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"node {node_id} has registered anew since")
        if leaves:
            await self._fence([node_id])
        self._heard_ms[node_id] = self._node.clock_ms()
        return self._node.cluster.brokers[node_id].is_fenced

    async def _fence(self, node_ids: Sequence[int]) -> None:
        def decide(image: ClusterImage) -> list[MetadataRecord]:
            fences = (controller.fence_broker(image, node_id) for node_id in node_ids)
            return [fence for fence in fences if fence is not None]

        await self._log.submit(decide)

    def _check_sessions(self) -> None:
        oldest_ms = self._node.clock_ms() - SESSION_MS
        lost = [
            broker.node_id
            for broker in self._node.cluster.alive_brokers()
            if broker.node_id != self._node.static_config.node_id and self._heard_ms.get(broker.node_id, 0) < oldest_ms
        ]
        if lost:
            self._node.run(self._fence(lost))
        self._session_check = self._node.loop.call_later(SESSION_CHECK_SECONDS, self._check_sessions)
