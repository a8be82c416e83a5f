"""
A way to a broker by which its answers come a little late, as over a network.

librdkafka takes a certificate that it refuses for a broken connection where the broker's answer is there before it has
ended its first call of the handshake, which on one machine it sometimes is.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

LATE_SECONDS = 0.02
_CHUNK = 65536


@contextlib.contextmanager
def late_answers_of(server: str) -> Iterator[str]:
    """Yield the address of a relay to `server`, `host:port` both."""
    host, _, port = server.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, (host, int(port))), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        # Wakes the thread up: closing alone does not.
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, server: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            broker = socket.create_connection(server)
            for way in ((client, broker, 0.0), (broker, client, LATE_SECONDS)):
                threading.Thread(target=_pass_on, args=way, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            time.sleep(seconds)
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
