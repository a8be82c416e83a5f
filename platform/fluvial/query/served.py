"""
A `fluvial serve` of the same warehouse on this machine: its engines run already, so that a statement needs no start.

The server leaves a note of its address in the warehouse, or beside the local platform's state where the warehouse is
elsewhere; what it does not answer is answered as without it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from fluvial.config import Settings
from fluvial.process_note import leave_note, read_note, take_note_back
from fluvial.spark.warehouse import SERVED, Warehouse

_NOTE = "serve.json"
_CONNECT_S = 1.0
_ENGINE = "fluvial-engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """
    Where a server listens on this machine, and the cluster whose topics it reads; `flight_url` is where it takes
    queries by Arrow Flight SQL, if it does.
    """

    host: str
    port: int
    bootstrap_servers: str
    flight_url: str | None = None

    @property
    def url(self) -> str:
        """
        Its address for a browser.
        """
        return f"http://{self.host}:{self.port}"

    def ask(
        self,
        statement: str,
        *,
        at: Sequence[str] = (),
        fresh: bool = False,
        at_least: Sequence[str] = (),
        fmt: str,
        width: int,
    ) -> tuple[bytes, str] | None:
        """
        The answer in a format, and what is said below it; None where the server gives none.

        `at`, `fresh` and `at_least` are as the options of `fluvial sql`; a table is drawn `width` characters wide.
        """
        connection = HTTPConnection(self.host, self.port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)
            asked = {"sql": statement, "at": [*at], "fresh": fresh, "fresh_at_least": [*at_least]}
            body = json.dumps({**asked, "format": fmt, "width": width})
            connection.request("POST", "/sql", body.encode(), {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()
        told = answer.headers.get("fluvial-told", "")
        if answer.status != 200 or answer.headers.get(_ENGINE) is None:
            return None
        return content, f"{told}; by the server at {self.host}:{self.port}"


def found(settings: Settings) -> Server | None:
    """
    The server of the settings' warehouse that has left a note and runs.
    """
    try:
        noted = read_note(_note(settings))
        os.kill(noted["pid"], 0)
        if noted["warehouse"] != _warehouse(settings):
            return None
        return Server(
            host=noted["host"], port=noted["port"], bootstrap_servers=noted["cluster"], flight_url=noted.get("flight")
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def process_of(settings: Settings) -> int | None:
    """
    The process that left the note, whether it runs or not.
    """
    try:
        return int(read_note(_note(settings))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def noted(settings: Settings, host: str, port: int, *, flight_url: str | None = None) -> Iterator[None]:
    """
    Leave a note of this process's server while it runs, where there is a place for it.
    """
    path = _note(settings)
    note: dict[str, Any] = {"host": host, "port": port, "flight": flight_url}
    note |= {"warehouse": _warehouse(settings), "cluster": settings.cluster.bootstrap_servers}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        leave_note(path, note)
    try:
        yield
    finally:
        take_note_back(path)


def _note(settings: Settings) -> Path:
    local = Warehouse.at(settings.warehouse).local
    return (Path(settings.data_dir) if local is None else local / SERVED) / _NOTE


def _warehouse(settings: Settings) -> str:
    local = Warehouse.at(settings.warehouse).local
    return settings.warehouse if local is None else str(local.resolve())
