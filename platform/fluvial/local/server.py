"""
The `fluvial serve` of a local platform: a process that `fluvial up --serve` starts beside the nodes.

It holds a lock while it runs, by which it is found again; `fluvial down` stops it with the nodes.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fluvial.local.errors import DataDirError, LocalPlatformError
from fluvial.local.lock import holder
from fluvial.local.rights import FILE_MODE

SERVER_LOCK = "serve.pid"
SERVER_LOG = "serve.log"
SERVER_PORT_DEFAULT = 8086
_POLL_SECONDS = 0.05


class ServerError(LocalPlatformError):
    """The server of a platform does not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer:
    """The process of a server, and whether it was started now."""

    pid: int
    is_new: bool


def server_of(data_dir: Path) -> int | None:
    """The process of the platform's server; None where none runs."""
    return holder(data_dir / SERVER_LOCK)


def start_server(
    data_dir: Path,
    port: int,
    *,
    flight_port: int | None = None,
    is_ready: Callable[[int], bool],
    timeout_seconds: float,
) -> StartedServer:
    """
    Start the platform's server unless it runs; return when `is_ready` says so of its process. With a `flight_port` it
    takes queries by Arrow Flight SQL, too.

    Raises ServerError where it ends before that, and where it takes longer.
    """
    running = server_of(data_dir)
    if running is not None:
        return StartedServer(pid=running, is_new=False)
    log = data_dir / SERVER_LOG
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise DataDirError(data_dir, error) from error
    # -P: the folder of a project is not one of modules for the command itself, as for `fluvial` on PATH.
    words = [sys.executable, "-P", "-m", "fluvial", "serve", "--of-platform"]
    words += ["--data-dir", str(data_dir.absolute()), "--port", str(port)]
    words += [] if flight_port is None else ["--flight-port", str(flight_port)]
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    finally:
        os.close(output)
    deadline = time.monotonic() + timeout_seconds
    while not is_ready(process.pid):
        if process.poll() is not None:
            raise ServerError(f"the server ended at once: {_last_line(log)}; its log is {log}")
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise ServerError(f"the server was not ready after {timeout_seconds:g} s and was stopped; its log is {log}")
        time.sleep(_POLL_SECONDS)
    return StartedServer(pid=process.pid, is_new=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
