"""
The other nodes of the cluster as this one reaches them: a link is one connection that answers in the order asked.

Many requests may be under way on a link. A Fetch that waits for more holds up the answers behind it, so whoever waits
long has a link of its own.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from log_broker.core.security.listeners import ListenersConfig
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dialing import PLAIN_DIALER, Dialer, dialer_of, open_streams
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

ANSWER_SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 128 * 1024 * 1024
CLIENT_ID = "broker"
ADMIN_CLIENT_ID = "__admin_client"  # under this name Kafka's own tools write to internal topics

_LENGTH = struct.Struct(">i")
_CORRELATION_BYTES = 4


class PeerLink:
    """A connection to `host:port`, opened when it is first used and again after it broke."""

    def __init__(self, address: str, *, client_id: str = CLIENT_ID, dialer: Dialer = PLAIN_DIALER) -> None:
        """Raises BrokerError(INVALID_CONFIG) for what is no address."""
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"the address of a node is host:port, not {address!r}")
        self.address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._client_id = client_id
        self._dialer = dialer
        self._opening = asyncio.Lock()
        self._closings = 0
        self._is_ended = False
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._correlation_id = 0

    async def ask(
        self,
        api: ApiKey,
        version: int,
        values: dict[str, Any],
        *,
        timeout_seconds: float = ANSWER_SECONDS_MAX,
        alone: bool = False,
    ) -> Any:
        """
        Send a request and return its answer; raises BrokerError(BROKER_NOT_AVAILABLE) when that fails.

        With `alone` it is sent where no other answer is awaited: a connection with such a request is dropped before.
        """
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        request = write_request(api, version, self._correlation_id, self._client_id, values)
        answer = await self.ask_raw(bytes(request), timeout_seconds=timeout_seconds, alone=alone)
        return read_response(api, version, memoryview(answer))

    async def ask_raw(
        self, request: bytes, *, timeout_seconds: float = ANSWER_SECONDS_MAX, alone: bool = False
    ) -> bytes:
        """Send a request as it stands and return the answer from behind its correlation id; errors as `ask`."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                writer = await self._open()
                while alone and self._waiting:
                    self.close()
                    writer = await self._open()
                self._waiting.append(answer)
                writer.write(_LENGTH.pack(len(request)) + request)
                return await answer
        except (OSError, EOFError, TimeoutError) as error:
            # The order of answers is still known, but a peer that is this late is as good as gone.
            if writer is None or writer is self._writer:
                self.close()
            reason = str(error) or type(error).__name__
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"the node at {self.address} does not answer: {reason}"
            ) from error

    def close(self) -> None:
        """Drop the connection; whoever waits on it is told so. A later request opens it again."""
        self._closings += 1
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        self._fail(ConnectionAbortedError("the connection was closed"))

    def end(self) -> None:
        """Drop the connection for good: who still holds this link is refused, and opens none that nobody closes."""
        self._is_ended = True
        self.close()

    async def _open(self) -> asyncio.StreamWriter:
        async with self._opening:
            if self._is_ended:
                raise ConnectionAbortedError("the link was given up")
            if self._writer is None or self._writer.is_closing():
                self.close()
                closings = self._closings
                try:
                    reader, writer = await open_streams(self._dialer, self._host, self._port)
                except UnicodeError as error:
                    raise ConnectionError(f"{self._host!r} is no name of a host") from error
                if closings != self._closings:
                    writer.transport.abort()
                    raise ConnectionAbortedError("the connection was closed while it was opened")
                self._writer = writer
                self._reading = asyncio.get_running_loop().create_task(self._read(reader, writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting = self._waiting
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if not _CORRELATION_BYTES <= length <= ANSWER_BYTES_MAX:
                    raise ConnectionAbortedError(f"an answer of {length} bytes")
                content = await reader.readexactly(length)
                if not waiting:
                    raise ConnectionAbortedError("an answer came that nobody asked for")
                answer = waiting.popleft()
                if not answer.done():  # who asked may have given up
                    answer.set_result(content[_CORRELATION_BYTES:])
        except (OSError, EOFError) as error:
            self._fail(error)
        finally:
            writer.transport.abort()

    def _fail(self, error: OSError | EOFError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(error)


class Peers:
    """
    Links to the other nodes by their id and by what they are used for, so that no purpose waits behind another.

    `address_of` says where a node is now, None where nobody knows; a node that has moved gets a new link.
    """

    def __init__(self, address_of: Callable[[int], str | None], dialer: Dialer = PLAIN_DIALER) -> None:
        self._address_of = address_of
        self.dialer = dialer
        self._links: dict[tuple[int, str], PeerLink] = {}

    def link(self, node_id: int, purpose: str, *, client_id: str = CLIENT_ID) -> PeerLink:
        """
        Return the link to a node, which knows us by `client_id`.

        Raises BrokerError(BROKER_NOT_AVAILABLE) when nobody knows where it is.
        """
        address = self._address_of(node_id)
        if address is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"nobody knows the address of node {node_id}")
        known = self._links.get((node_id, purpose))
        if known is None or known.address != address:
            if known is not None:
                known.end()
            known = self._links[node_id, purpose] = PeerLink(address, client_id=client_id, dialer=self.dialer)
        return known

    def close(self) -> None:
        """Drop every connection."""
        for link in self._links.values():
            link.end()
        self._links.clear()


def peers_of(
    config: ListenersConfig,
    clock: Callable[[], float],
    address_of: Callable[[int], str | None],
    controller_address_of: Callable[[int], str | None],
) -> tuple[Peers, Peers]:
    """
    Return links to the other nodes and to controllers, which are the same unless these have a listener of their own.

    Raises BrokerError(INVALID_CONFIG) for certificates that cannot be used.
    """
    peers = Peers(address_of, dialer_of(config.own, config.account, clock))
    if config.controller is None:
        return peers, peers
    return peers, Peers(controller_address_of, dialer_of(config.controller, config.controller_account, clock))
