"""All connections of a node: how many there may be, and which are closed because they are idle or hold memory."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from log_broker.server.net.connection import Connection
from log_broker.server.net.ports import HasMemory
from log_broker.server.process.ports import Cluster, HasCounters, Process

IDLE_CHECK_SECONDS_MAX = 10.0
STALLED_SECONDS_MAX = 30.0


class ConnectionsHost(Cluster, HasCounters, HasMemory, Process, Protocol):
    """What keeping connections asks of the node."""


class Connections:
    """The accepted connections, in the order in which they came."""

    def __init__(self, node: ConnectionsHost) -> None:
        self._node = node
        self._all: dict[Connection, None] = {}
        self._of_address: Counter[str] = Counter()
        self._idle_check: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._all)

    def start(self) -> None:
        """Begin to look for connections that are idle."""
        self._check_idle()

    def stop(self) -> None:
        """Look no more."""
        if self._idle_check is not None:
            self._idle_check.cancel()

    def close(self) -> None:
        """Close all connections, and those that are still accepted."""
        self._is_closed = True
        for connection in list(self._all):
            connection.close()

    def cut_off(self) -> None:
        """Wait for nobody more who has not taken an answer yet, or does not answer the end of TLS."""
        for connection in list(self._all):
            connection.cut_off()

    def opened(self, connection: Connection) -> str | None:
        """Note a new connection; say why it cannot stay if there are too many."""
        config = self._node.config
        self._all[connection] = None
        self._of_address[connection.host] += 1
        self._node.counters.connections += 1
        if self._is_closed:
            connection.close()
            return None
        if len(self._all) > config.max_connections:
            return f"there are {config.max_connections} connections already"
        if self._of_address[connection.host] > config.max_connections_per_ip:
            return f"its address has {config.max_connections_per_ip} connections already"
        return None

    def room_for(self, host: str) -> int:
        """Return how many more connections an address may have."""
        return self._node.config.max_connections_per_ip - self._of_address[host]

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._all.pop(connection, None)
        if connection.session is not None:
            connection.session.ended()
        self._of_address[connection.host] -= 1
        if not self._of_address[connection.host]:
            del self._of_address[connection.host]

    def _check_idle(self) -> None:
        node = self._node
        seconds = node.config.connections_max_idle_ms / 1000
        deadline = node.loop.time() - seconds
        for connection in list(self._all):
            if connection.is_idle_since(deadline):
                connection.fail(f"idle for {seconds:.0f} s")
        if node.memory.waiting or node.memory.is_full:
            self._free_memory()
        self._idle_check = node.loop.call_later(min(seconds / 2, IDLE_CHECK_SECONDS_MAX), self._check_idle)

    def _free_memory(self) -> None:
        """Close connections that neither read their answers nor finish their requests while others wait for memory."""
        deadline = self._node.loop.time() - STALLED_SECONDS_MAX
        for connection in list(self._all):
            if connection.holds_memory_since(deadline):
                connection.fail(f"it has held memory for {STALLED_SECONDS_MAX:.0f} s that others wait for")
