"""
The Spark session that `fluvial serve --keep-spark` keeps running, as a command finds it and asks for it.

It is lent to one process at a time, for as long as the connection by which it was asked for is open. A note beside the
local platform's state says where its sockets are: in a folder of its user's, as whoever reaches them runs code.
"""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fluvial.config import Settings
from fluvial.process_note import leave_note, read_note, take_note_back

LEASES = "leases"
"""The socket where the session is asked for."""
COMMANDS = "commands"
"""The socket where a command is run by a process that has imported what it needs."""
REQUEST_BYTES_MAX = 1 << 20
CLEARED_WITHIN_S = 10.0
"""How long who asks waits for what the last command left to be cleared away."""

_NOTE = "spark.json"
_PYTHON = [sys.executable, *sys.version_info[:3]]
_ANSWERS_WITHIN_S = CLEARED_WITHIN_S + 5.0
# Of the environment, what a JVM or its Python workers take from there.
_OF_JVM = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "JAVA_", "LD_LIBRARY_PATH", "LANG", "LC_", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Lease:
    """
    The use of a kept session's JVM, until it is closed or this process ends.
    """

    port: int
    secret: str
    connection: socket.socket

    def close(self) -> None:
        """
        Give the session back.
        """
        self.connection.close()


def fingerprint(conf: Mapping[str, str]) -> str:
    """
    What a session depends on: its settings, the folder that it runs in, and what its JVM takes from the environment.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith(_OF_JVM)}
    told = json.dumps([dict(conf), os.getcwd(), environment], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def borrow(settings: Settings, conf: Callable[[], Mapping[str, str]]) -> Lease | None:
    """
    The kept session of these settings; None where none is kept, it has other settings, or another command has it.

    `conf` says what a session of its own would be configured with, and is asked only where one is kept.
    """
    link = connected(settings, LEASES)
    if link is None:
        return None
    with suppress(OSError, ValueError, KeyError):
        link.settimeout(_ANSWERS_WITHIN_S)
        link.send(fingerprint(conf()).encode())
        answer = json.loads(link.recv(REQUEST_BYTES_MAX))
        link.settimeout(None)
        return Lease(int(answer["port"]), str(answer["secret"]), link)
    link.close()
    return None


def connected(settings: Settings, name: str) -> socket.socket | None:
    """
    A connection to a socket of what `fluvial serve --keep-spark` runs for these settings; None where it does not.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = read_note(_note(settings))
        if note["python"] == _PYTHON:
            link.connect(str(Path(note["folder"]) / name))
            return link
    link.close()
    return None


@contextmanager
def noted(settings: Settings, folder: Path) -> Iterator[None]:
    """
    Leave a note of the folder of the sockets, as long as this process keeps the session.
    """
    path = _note(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    leave_note(path, {"folder": str(folder), "python": _PYTHON})
    try:
        yield
    finally:
        take_note_back(path)


def _note(settings: Settings) -> Path:
    return Path(settings.data_dir) / _NOTE
