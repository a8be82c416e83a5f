"""The HTTP protocol of the server, with bounds on what it waits for: uvicorn's own waits for a request for ever."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

CERTIFICATE = "certificate"
"""Where in a request's state the certificate stands that its client has shown, as `ssl` gives it."""

HEAD_SECONDS_MAX = 10.0
HEAD_BYTES_MAX = 64 * 1024


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Ends a connection over which no whole request head comes in time, or one that is too large."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            # Of this connection alone: all share what the server gave them.
            self.app_state: dict[str, Any] = {**self.app_state, CERTIFICATE: certificate}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        # An answer may be complete before its request is: the rest of a body that is too large belongs to no head.
        if before is None or (before.response_complete and not before.more_body):
            self._head_bytes += len(data)
            self._await_head()
        super().data_received(data)
        if self.cycle is not before or self.transport.get_protocol() is not self:  # a web socket has taken over
            self._head_came()
        elif self._head_bytes > HEAD_BYTES_MAX:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = asyncio.get_running_loop().call_later(HEAD_SECONDS_MAX, self.transport.abort)

    def _head_came(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
