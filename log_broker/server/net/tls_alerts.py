"""
Sends the alert by which TLS says why a handshake failed.

asyncio and uvloop close such a connection without it, so that a client learns no more than that it was cut off: Java's
tries again until its time is over, where the alert (RFC 8446, 6.2) ends it at once and says what is wrong.
"""

import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any

ACCEPTED: ContextVar[socket.socket] = ContextVar("accepted")
"""The socket whose handshake a task begins."""


class TellingContext(ssl.SSLContext):
    """A context whose connections send their last word to the socket that `ACCEPTED` names."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *words: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *words, **named)
        accepted = ACCEPTED.get(None)
        if isinstance(made, _Telling) and accepted is not None:
            made.last_word = (accepted, outgoing)
        return made


class _Telling(ssl.SSLObject):
    last_word: tuple[socket.socket, ssl.MemoryBIO] | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            self._send_alert()
            raise
        self.last_word = None

    def _send_alert(self) -> None:
        if self.last_word is not None:
            accepted, outgoing = self.last_word
            self.last_word = None
            # A few bytes: they fit, or the client takes none.
            with contextlib.suppress(OSError):
                accepted.send(outgoing.read())


TellingContext.sslobject_class = _Telling
