"""
A socket in the file system that leads to a TCP port: for a port in a network of its own, which nobody else reaches.
"""

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

_PIECE_BYTES = 1 << 16


def relay(path: Path, address: tuple[str, int]) -> None:
    """
    Listen at `path`, from threads of this process, and pass on what comes to `address` and back.

    Raises OSError where there can be no socket, as for a path of more than some hundred bytes.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen()
    except OSError:
        listener.close()
        raise
    Thread(target=_accept, args=(listener, address), name="relay", daemon=True).start()


def _accept(listener: socket.socket, address: tuple[str, int]) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(address)
        except OSError:
            near.close()
            continue
        for source, target in ((near, far), (far, near)):
            Thread(target=_pass_on, args=(source, target), name="relay", daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
