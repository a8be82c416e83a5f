"""
Where decisions about the cluster are made: here, on the controller, or over there, as the other nodes see it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from log_broker.core import controller
from log_broker.core.broker_registry import SESSION_MS, Heartbeat, Registration
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.controller import Controller, active_controller
from log_broker.server.metadata_log import Decide, MetadataLog
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.server.dispatch import RequestContext
    from log_broker.server.node import Node

HEARTBEAT_SECONDS = 2.0
# Node 0 is the controller wherever it runs, so whoever comes as node 0 has taken the place of the one before.
THIS_DIRECTORY = "0" * 32

_log = logging.getLogger(__name__)


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
        self._beating: asyncio.Task[None] | None = None

    async def cluster_id(self) -> str | None:
        return self._node.static_config.cluster_id

    async def start(self) -> None:
        node = self._node
        self._log = MetadataLog(node.metadata_partition(), node.cluster, node.apply_image)
        self._log.load()
        node.replicas.remove_strays()
        node.controller = Controller(node, self, 0, session_ms=SESSION_MS)
        config = node.static_config
        await node.controller.register(
            Registration(config.node_id, node.advertised_host, node.port, self._incarnation, directory=THIS_DIRECTORY)
        )
        await self._heartbeat()
        node.controller.start()
        self._beating = node.loop.create_task(self._beat())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._node.controller is not None:
            self._node.controller.stop()

    async def create_topic(self, command: controller.CreateTopic) -> None:
        await self._log.submit(lambda image: [controller.create_topic(image, command, self._node.config)])

    async def submit(self, decide: Decide) -> None:
        await self._log.submit(decide)

    async def forward(self, context: "RequestContext") -> bytes:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "the controller has nobody to pass a request on to")

    async def ask_controller(self, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "the controller has nobody to ask")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._heartbeat()
            except BrokerError as error:
                _log.warning("this node is not heard of: %s", error)

    async def _heartbeat(self) -> None:
        image, node_id = self._node.cluster, self._node.static_config.node_id
        await active_controller(self._node).heartbeat(Heartbeat(node_id, image.brokers[node_id].epoch, image.version))
