"""
The answers of one connection on their way to its transport.

A transport keeps all that it was handed until the last byte of that is sent, and over TLS a second time, encrypted, of
which it says nothing. So large answers are handed over in pieces, each when the one before is sent, and how much memory
they hold is known here.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from log_broker.records.batch import Buffer
from log_broker.records.stored import Chunk, read_all
from log_broker.server.process.counters import Counters

PIECE_BYTES = 256 * 1024
_JOINED_BYTES_MAX = 64 * 1024
_UNSENT_BYTES_MAX = 1  # with none, asyncio's and uvloop's TLS would wait at once, and for good


class Outbox:
    """
    Sends buffers in order.

    `is_free` says that all of them are sent, which a client that does not read its answers keeps from being so; `held`
    is how many bytes they hold until then.
    """

    __slots__ = (
        "_chunks",
        "_counters",
        "_descriptor",
        "_handed",
        "_is_closing",
        "_position",
        "_transport",
        "held",
        "is_free",
    )

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[Buffer] = deque()  # of which not all is handed over
        self._position = 0  # in the first of them
        self._handed = 0  # bytes of those of which all is, with the last piece, that may not be sent
        self._is_closing = False
        self._descriptor = -1  # of a socket to which a file can be sent past the transport
        self.held = 0
        self.is_free = True

    def attach(self, transport: asyncio.Transport) -> None:
        """Send by this transport, which reports to `paused` and `resumed`."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX, low=0)
        socket = transport.get_extra_info("socket")
        if socket is not None and transport.get_extra_info("sslcontext") is None:
            self._descriptor = socket.fileno()

    def send(self, chunks: list[Buffer]) -> None:
        """Send these behind all others."""
        size = sum(map(len, chunks))
        if size <= _JOINED_BYTES_MAX and self.is_free and self._transport is not None:
            self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            if not self.is_free:
                self.held = self._handed = size
        else:
            self._chunks.extend(chunks)
            self.held += size
            self._hand_over()
        self._counters.bytes_out += size

    def pass_on(self, chunks: Sequence[Chunk]) -> list[Buffer]:
        """Send what the socket takes at once if nothing stands before it; return the rest, read. Raises OSError."""
        before: list[Buffer] = []
        for at, chunk in enumerate(chunks):
            if isinstance(chunk, Buffer):
                before.append(chunk)
                continue
            if before and self.is_direct:
                self.send(before)
                before = []
            if not self.is_direct:
                return [*before, *read_all(chunks[at:])]
            sent = chunk.send(self._descriptor)
            self._counters.bytes_out += sent
            if sent < len(chunk):
                return [*chunk.read(sent), *read_all(chunks[at + 1 :])]
        return before

    @property
    def is_direct(self) -> bool:
        """Whether the socket can be written to past the transport, which has nothing to send."""
        transport = self._transport
        if self._descriptor < 0 or not self.is_free or transport is None or transport.is_closing():
            return False
        return transport.get_write_buffer_size() == 0

    def paused(self) -> None:
        """Note that the transport has not sent all of the last piece."""
        self.is_free = False

    def resumed(self) -> None:
        """Note that it has."""
        self.is_free = True
        self._sent()
        self._hand_over()

    def close(self) -> None:
        """Close the transport once all is sent."""
        self._is_closing = True
        self._hand_over()

    def clear(self) -> None:
        """Forget what nobody receives any more."""
        self._chunks.clear()
        self.held = self._handed = self._position = 0

    def _hand_over(self) -> None:
        transport = self._transport
        if transport is None:
            return
        while self._chunks and self.is_free:
            _write(transport, self._next_piece())
            if self.is_free:
                self._sent()
        if self._is_closing and not self._chunks:
            transport.close()

    def _next_piece(self) -> list[Buffer]:
        chunks, piece, room = self._chunks, list[Buffer](), PIECE_BYTES
        while chunks and room:
            chunk, start = chunks[0], self._position
            left = len(chunk) - start
            if left > room:
                piece.append(memoryview(chunk)[start : start + room])
                self._position += room
                break
            piece.append(memoryview(chunk)[start:] if start else chunk)
            room -= left
            self._handed += len(chunk)
            self._position = 0
            chunks.popleft()
        return piece

    def _sent(self) -> None:
        self.held -= self._handed
        self._handed = 0


def _write(transport: asyncio.Transport, piece: list[Buffer]) -> None:
    if len(piece) == 1:
        transport.write(piece[0])
    elif sum(map(len, piece)) <= _JOINED_BYTES_MAX:
        transport.write(b"".join(piece))
    else:
        # Up to Python 3.12.8 and 3.13.1 `writelines` never pauses its protocol (CVE-2024-12254), and `write` does.
        transport.writelines(piece[:-1])
        transport.write(piece[-1])
