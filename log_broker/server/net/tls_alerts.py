"""
Sends the alert by which TLS says why a handshake failed.

asyncio and uvloop close such a connection without it, so that a client learns no more than that it was cut off: Java's
tries again until its time is over, where the alert (RFC 8446, 6.2) ends it at once and says what is wrong.
"""

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any

HEARD_SECONDS_MAX = 5.0
UNREAD_BYTES_MAX = 65536
_READ_BYTES = 4096


class LastWord:
    """
    The alert of one connection, which reaches its client whole.

    By TLS 1.3 a client is through before its certificate is looked at, and has sent a request by then. A socket that is
    closed with something unread is reset, and what the client has not read yet may be lost: so it is read first.
    """

    def __init__(self, accepted: socket.socket) -> None:
        self._accepted = accepted
        self._said_to: socket.socket | None = None

    def say(self, alert: bytes) -> None:
        """Send it; nothing more can be sent then, and the connection stays until `heard` is through, or `close`."""
        # A few bytes: they fit, or the client takes none.
        with contextlib.suppress(OSError):
            self._accepted.send(alert)
            self._said_to = self._accepted.dup()
            self._said_to.shutdown(socket.SHUT_WR)

    async def heard(self) -> None:
        """Wait until the client has gone, but not long."""
        if self._said_to is None:
            return
        unread, loop = UNREAD_BYTES_MAX, asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(HEARD_SECONDS_MAX):
                while unread > 0 and (read := await loop.sock_recv(self._said_to, _READ_BYTES)):
                    unread -= len(read)

    def cut_short(self) -> None:
        """Let whoever reads from the connection, or sends by it, find that it has ended."""
        for each in (self._accepted, self._said_to):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection where an alert has kept it."""
        if self._said_to is not None:
            self._said_to.close()
            self._said_to = None


LAST_WORD: ContextVar[LastWord] = ContextVar("last_word")
"""Of the connection whose handshake a task begins."""


class TellingContext(ssl.SSLContext):
    """A context whose connections say their last word by `LAST_WORD`."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *words: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *words, **named)
        last_word = LAST_WORD.get(None)
        if isinstance(made, _Telling) and last_word is not None:
            made.last_word = (last_word, outgoing)
        return made


class _Telling(ssl.SSLObject):
    last_word: tuple[LastWord, ssl.MemoryBIO] | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.last_word is not None:
                last_word, outgoing = self.last_word
                self.last_word = None
                last_word.say(outgoing.read())
            raise
        self.last_word = None


TellingContext.sslobject_class = _Telling
