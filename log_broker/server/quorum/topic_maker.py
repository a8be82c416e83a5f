"""Topics that are made when they are first used."""

import asyncio
from typing import Protocol

from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.ports import Cluster, Process
from log_broker.server.quorum.ports import HasAuthority


class MakerHost(Cluster, HasAuthority, Process, Protocol):
    """What making topics asks of the node."""


class TopicMaker:
    """Makes each topic once, however many ask for it at a time."""

    def __init__(self, node: MakerHost) -> None:
        self._node = node
        self._making: dict[str, asyncio.Task[BrokerError | None]] = {}

    async def ensure(self, command: CreateTopic) -> None:
        """Make a topic if it is not there; raises BrokerError."""
        if command.name in self._node.cluster.topics:
            return
        task = self._making.get(command.name)
        if task is None:
            task = self._making[command.name] = self._node.run(self._make(command))
            task.add_done_callback(lambda _: self._making.pop(command.name, None))
        error = await asyncio.shield(task)
        if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise error

    async def _make(self, command: CreateTopic) -> BrokerError | None:
        try:
            await self._node.authority.create_topic(command)
        except BrokerError as error:
            return error
        return None
