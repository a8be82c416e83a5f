"""
The connection over which a replica fetches from one leader: requests out, answers in, nothing copied that is large.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from log_broker.wire.framing import FrameCutter, FrameTooLargeError

ANSWER_BYTES_MAX = 512 * 1024 * 1024
_CORRELATION_BYTES = 4


class FetchLink(asyncio.BufferedProtocol):
    """
    One open connection; `answered` gets each answer from behind its correlation id on, in memory of its own.

    `lost` is called once when the connection ends, unless `close` has ended it.
    """

    def __init__(
        self, staging: memoryview, *, answered: Callable[[memoryview], None], lost: Callable[[str], None]
    ) -> None:
        self._staging = staging
        self._answered = answered
        self._lost: Callable[[str], None] | None = lost
        self._cutter = FrameCutter(ANSWER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self.received = 0  # bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._lost is None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(str(exc) if exc is not None else "it closed the connection")

    def get_buffer(self, sizehint: int) -> memoryview:
        self._cutter.allow(self._cutter.wanted)
        room = self._cutter.room()
        return self._staging if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes
        if self._cutter.room() is None:
            try:
                frames = self._cutter.take(self._staging[:nbytes])
            except FrameTooLargeError as error:
                self._end(str(error))
                return
            for frame in frames:
                self._hand_over(frame)
            return
        whole = self._cutter.filled(nbytes)
        if whole is not None:
            self._hand_over(whole)

    def send(self, request: bytearray) -> None:
        """Send a request, which has no length in front yet."""
        if self._transport is not None:
            self._transport.writelines((len(request).to_bytes(4, "big"), request))

    def close(self) -> None:
        """End the connection; nobody is told."""
        self._lost = None
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self, frame: memoryview) -> None:
        if self._lost is not None:  # what was closed meanwhile is over
            self._answered(frame[_CORRELATION_BYTES:])

    def _end(self, reason: str) -> None:
        lost = self._lost
        self.close()
        if lost is not None:
            lost(reason)
