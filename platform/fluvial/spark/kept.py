"""
The Spark session that `fluvial serve --keep-spark` keeps running, as a command finds it and asks for it.

It is lent to one process at a time, for as long as the connection by which it was asked for is open. The note of where
to ask lies beside the local platform's state, and only its user reads it: whoever reaches a JVM's gateway runs code.
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluvial.config import Settings

HOST = "127.0.0.1"
_NOTE = "spark.json"
_ANSWERS_WITHIN_S = 2.0
_LINE_MAX = 1 << 12
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


def borrow(settings: Settings, conf: Mapping[str, str]) -> Lease | None:
    """
    The kept session of these settings; None where none is kept, it has other settings, or another command has it.
    """
    connection = socket.socket()
    with suppress(OSError, ValueError, KeyError, TypeError):
        connection.settimeout(_ANSWERS_WITHIN_S)
        note = json.loads(_note(settings).read_text(encoding="utf-8"))
        connection.connect((HOST, note["port"]))
        send(connection, {"token": note["token"], "fingerprint": fingerprint(conf)})
        answer = receive(connection)
        if "secret" in answer:
            connection.settimeout(None)
            return Lease(int(answer["port"]), str(answer["secret"]), connection)
    connection.close()
    return None


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """
    Write a message of the two sides: a line of JSON.
    """
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket) -> dict[str, Any]:
    """
    Read a message of the two sides. Raises OSError, or ValueError for what is none.
    """
    line = b""
    while not line.endswith(b"\n"):
        chunk = connection.recv(_LINE_MAX)
        line += chunk
        if not chunk or len(line) > _LINE_MAX:
            raise ValueError("no message")
    return dict(json.loads(line))


@contextmanager
def noted(settings: Settings, port: int, token: str) -> Iterator[None]:
    """
    Leave a note of where the session is asked for, as long as this process keeps it.
    """
    path = _note(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{_NOTE}.{os.getpid()}")
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as note:
        json.dump({"pid": os.getpid(), "port": port, "token": token}, note)
    written.replace(path)
    try:
        yield
    finally:
        with suppress(OSError, ValueError, KeyError):
            if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
                path.unlink()


def _note(settings: Settings) -> Path:
    return Path(settings.data_dir) / _NOTE
