"""
Noticing at once that a broker's process has ended, where a session would end seconds later.

Each node that may become the controller holds one idle connection to each broker. When a process dies, however it
dies, its system closes the connection and refuses the next one: nobody listens there any more. Only both together
count. A broker that hangs, a machine that loses power and a network that is cut refuse nothing; they are left to the
session, and so is a broker whose address refused from the start, until it has had time for a heartbeat.

A controller that dies has been seen to by the one that comes after it, which therefore fences it at once. Who is taken
for dead wrongly loses its leaderships and registers again: that costs a moment and no record.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from log_broker.core.cluster.image import BrokerImage
from log_broker.server.net.dialing import PLAIN_DIALER, Dialer, open_streams

CONNECT_SECONDS_MAX = 2.0
RETRY_SECONDS = 1.0


class Address(NamedTuple):
    """One registration of a broker, and where it listens."""

    node_id: int
    epoch: int
    host: str
    port: int


class Liveness:
    """Watches brokers. `ended(node_id, certain)` is called for one whose address refuses, again and again."""

    def __init__(self, ended: Callable[[int, bool], None], dialer: Dialer = PLAIN_DIALER) -> None:
        """`certain` says that a connection to this very process had been there and broke."""
        self._ended = ended
        self._dialer = dialer
        self._gone: set[Address] = set()
        self._watches: dict[Address, asyncio.Task[None]] = {}
        self._is_stopped = False

    @property
    def gone(self) -> list[int]:
        """The brokers whose processes have certainly ended, until they are watched no more."""
        return sorted(address.node_id for address in self._gone)

    def watch(self, brokers: Iterable[BrokerImage]) -> None:
        """Watch these brokers and no others; a new registration of one is watched again."""
        watched = () if self._is_stopped else brokers
        wanted = {Address(broker.node_id, broker.epoch, broker.host, broker.port) for broker in watched}
        for address in sorted(self._watches.keys() - wanted):
            self._watches.pop(address).cancel()
            self._gone.discard(address)
        loop = asyncio.get_running_loop()
        for address in sorted(wanted - self._watches.keys()):
            self._watches[address] = loop.create_task(self._watch(address))

    def stop(self) -> None:
        """Watch nobody any more, whatever is wanted while the node stops."""
        self._is_stopped = True
        self.watch(())

    async def _watch(self, address: Address) -> None:
        connected = False
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    reader, writer = await open_streams(self._dialer, address.host, address.port)
            except ConnectionRefusedError:
                if connected:
                    self._gone.add(address)
                self._ended(address.node_id, connected)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except (OSError, TimeoutError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            connected = True
            self._gone.discard(address)
            try:
                # Nothing comes: the broker speaks only when it is spoken to, and this ends when the connection does.
                while await reader.read(64):
                    continue
            except OSError:
                pass
            finally:
                writer.close()
