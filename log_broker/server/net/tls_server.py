"""
Accepts connections of a listener that is encrypted, and gets them through their handshake.

asyncio's own server knows nothing of a connection before that: how many are in it would have no bound, and all would
have the certificate that it was started with.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from log_broker.server.net.half_open import HalfOpen
from log_broker.server.net.tls import TlsContext
from log_broker.server.net.tls_alerts import LAST_WORD, LastWord
from log_broker.server.process.log_limiter import RateLimitedLog

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS_MAX = 10.0
ACCEPTED_AT_ONCE_MAX = 16  # in a turn of the event loop: a handshake takes up to a millisecond of it
REST_SECONDS = 1.0  # when the system has no descriptor left


class TlsServer:
    """One listening socket; `made` gives the protocol of a connection whose handshake is done."""

    def __init__(
        self,
        listener: socket.socket,
        context: TlsContext,
        made: Callable[[], asyncio.BaseProtocol],
        half_open: HalfOpen,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._context = context
        self._made = made
        self._half_open = half_open
        self._handshakes: set[_Handshake] = set()
        self._trouble = RateLimitedLog(_log, self._loop.time)
        self._lack = RateLimitedLog(_log, self._loop.time)
        self._is_closed = False
        self._loop.add_reader(listener.fileno(), self._accept)

    async def close(self) -> None:
        """Take no more in, and end what is not through."""
        self._is_closed = True
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        tasks = [each.task for each in self._handshakes]
        for each in list(self._handshakes):
            each.give_up("the broker is stopping")
        if tasks:
            await asyncio.wait(tasks)

    def failed(self, peer: str, reason: str) -> None:
        """Tell, now and then, of a handshake that came to nothing."""
        self._trouble.failed("the TLS handshake of %s failed: %s", peer, reason)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._lack.failed("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(REST_SECONDS, self._accept_again)
                return
            if self._half_open.is_crowded(address[0]):
                accepted.close()
                self.failed(f"{address[0]}:{address[1]}", "its address has as many connections as it may have")
                continue
            accepted.setblocking(False)
            handshake = _Handshake(self, accepted, address[0], address[1])
            self._handshakes.add(handshake)
            self._half_open.enter(handshake)
            handshake.task.add_done_callback(partial(self._through, handshake))

    def _accept_again(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _through(self, handshake: "_Handshake", _: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        self._half_open.leave(handshake)

    async def shake_hands(self, accepted: socket.socket, last_word: LastWord) -> None:
        """Get a connection through; raises what kept it."""
        LAST_WORD.set(last_word)
        await self._loop.connect_accepted_socket(
            self._made,
            accepted,
            ssl=self._context.current(),
            ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
        )


class _Handshake:
    """One connection until its handshake is done."""

    def __init__(self, server: TlsServer, accepted: socket.socket, host: str, port: int) -> None:
        self._server = server
        self._accepted = accepted
        self._last_word = LastWord(accepted)
        self.host = host
        self._peer = f"{host}:{port}"
        self._reason: str | None = None
        self.task = asyncio.get_running_loop().create_task(self._shake())

    def give_up(self, reason: str) -> None:
        """
        End it; the task is done a few turns of the event loop later.

        A task that is cancelled between two steps of asyncio's leaves a transport that nobody ends: each of them sees
        for itself that the socket is at its end.
        """
        self._reason = reason
        self._last_word.cut_short()

    async def _shake(self) -> None:
        try:
            await self._server.shake_hands(self._accepted, self._last_word)
        except (OSError, TimeoutError) as error:
            self._accepted.close()
            said = error.reason if isinstance(error, ssl.SSLError) else ""
            self._server.failed(self._peer, self._reason or said or str(error) or "it closed the connection")
            await self._last_word.heard()
        finally:
            self._last_word.close()
