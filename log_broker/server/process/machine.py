"""
The machine that a node runs on, as far as the event loop is not the way to it: files, threads for the disk, addresses.

The simulator has another one. Time is the loop's, or `clock_ms` of the node, and connections are the loop's.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from log_broker.config.broker import BrokerConfig
from log_broker.server.process.sync_pool import SyncPool
from log_broker.storage.data_directory import DataDirectory
from log_broker.storage.files import FileSystem, OsFileSystem

BACKLOG = 1024


def wall_clock_ms() -> int:
    """The machine's clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def advertised_host(config: BrokerConfig) -> str:
    """The name under which others are told to find a node."""
    return config.advertised_host or advertised_name(config.host)


def advertised_name(host: str) -> str:
    """The name under which others are told to find who listens at `host`."""
    return socket.gethostname() if host in {"", "0.0.0.0", "::"} else host  # noqa: S104


class BindError(Exception):
    """The node cannot listen at its address."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}")
        self.host = host
        self.port = port


class Pool(Protocol):
    """Threads that wait for disks (`sync_pool`)."""

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None: ...

    def close(self) -> None: ...


class Claim(Protocol):
    """What keeps a second process from a data directory (`data_directory`)."""

    def acquire(self) -> None:
        """Raises DataDirectoryError."""
        ...

    def release(self) -> None: ...


class Machine(Protocol):
    """What a node asks of the machine."""

    @property
    def files(self) -> FileSystem: ...

    def claim(self, data_dir: Path) -> Claim: ...

    def pool(self, loop: asyncio.AbstractEventLoop) -> Pool: ...

    def bind(self, host: str, port: int) -> socket.socket:
        """Return what `loop.create_server` takes as its `sock`; raises BindError."""
        ...

    async def unlisten(self, server: asyncio.Server) -> None:
        """Take no more connections in; return when those accepted before are made."""
        ...

    def cpu_seconds(self) -> float | None:
        """Return how long the calling thread has had a processor; None where time is not real."""
        ...


class RealMachine:
    """The one that this process runs on."""

    def __init__(self) -> None:
        self.files: FileSystem = OsFileSystem()

    def claim(self, data_dir: Path) -> Claim:
        return DataDirectory(data_dir)

    def pool(self, loop: asyncio.AbstractEventLoop) -> Pool:
        return SyncPool(loop)

    def bind(self, host: str, port: int) -> socket.socket:
        """Listening at once makes the port ours; clients wait in the backlog until the node serves them."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise BindError(host, port, error.strerror or str(error)) from error
        listener.setblocking(False)
        return listener

    def cpu_seconds(self) -> float | None:
        return time.thread_time()

    async def unlisten(self, server: asyncio.Server) -> None:
        """What asyncio accepts in the turn in which its server is closed it drops, and leaves open."""
        loop = server.get_loop()
        for listener in server.sockets:
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)
        server.close()
