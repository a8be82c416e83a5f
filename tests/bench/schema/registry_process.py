"""A node with its registry in a process of its own, and a client that costs little beside it."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

START_SECONDS_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A node that answers."""

    url: str
    pid: int
    started_seconds: float
    bootstrap_servers: str

    def resident_mebibytes(self) -> float:
        """The memory that the process has now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("a process that runs has memory")


@contextlib.contextmanager
def node(data_dir: Path, *, ready: str = "/") -> Iterator[Running]:
    """Run a node until the block ends; it has started when `ready` is answered with success."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, registry_port = one.getsockname()[1], other.getsockname()[1]
    command = [sys.executable, "-m", "fluvial.node", "--data-dir", str(data_dir)]
    command += ["--port", str(port), "--registry-port", str(registry_port)]
    began = time.perf_counter()
    log = data_dir.with_suffix(".log")
    with log.open("ab") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            while not _answers(registry_port, ready):
                if process.poll() is not None or time.perf_counter() - began > START_SECONDS_MAX:
                    raise RuntimeError(f"the node did not start; see {log}")
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            yield Running(
                url=f"http://127.0.0.1:{registry_port}",
                pid=process.pid,
                started_seconds=seconds,
                bootstrap_servers=f"127.0.0.1:{port}",
            )
        finally:
            process.terminate()
            process.wait(60)


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


class Connection:
    """One kept connection, over which a request is asked after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, url: str) -> "AsyncIterator[Connection]":
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer; raises for one that is not a success."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        length = int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:60]!r}: {body[:300]!r}")
        return body


def get(path: str) -> bytes:
    """A read."""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: application/vnd.schemaregistry.v1+json\r\n\r\n".encode()


def register(subject: str, schema: str) -> bytes:
    """A registration."""
    body = json.dumps({"schema": schema})
    head = f"POST /subjects/{subject}/versions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def ask_all(url: str, requests: Sequence[bytes], connections: int) -> list[float]:
    """Ask everything, over several connections at once, and return how many seconds each took."""
    waiting = iter(requests)
    seconds: list[float] = []

    async def work() -> None:
        async with Connection.to(url) as connection:
            for request in waiting:
                began = time.perf_counter()
                await connection.ask(request)
                seconds.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())
    return seconds


def record(fields: int) -> str:
    """A record schema of some fields; one of more fields may follow one of fewer."""
    parts = [{"name": f"field_{number}", "type": ["null", "string"], "default": None} for number in range(fields)]
    return json.dumps({"type": "record", "name": "Reading", "namespace": "bench", "fields": parts})
