"""Rows by key over HTTP from `fluvial serve`, as a process of its own, for one client and for sixteen."""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import IO

from fluvial.config import Settings

READY = re.compile(r"http://127\.0\.0\.1:(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Milliseconds of one look-up in the middle and of the slowest in a hundred, and look-ups a second."""

    p50: float
    p99: float
    rate: float

    @classmethod
    def of(cls, seconds: list[float], whole: float) -> "Taken":
        """From the time of each look-up, and that of all."""
        cuts = quantiles(seconds, n=100)
        return cls(p50=cuts[49] * 1000, p99=cuts[98] * 1000, rate=len(seconds) / whole)


@dataclass(slots=True)
class Server:
    """A server that has a table open, and what it took to open it."""

    port: int
    process: "subprocess.Popen[str]"
    opened: float

    def resident(self) -> int:
        """Bytes of memory that it has to itself, mapped files left out."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            found = re.search(r"RssAnon:\s+(\d+) kB", status.read())
        assert found is not None, "Linux says it"
        return int(found[1]) * 1024


@contextmanager
def serving(settings: Settings, table: str) -> Iterator[Server]:
    """Run `fluvial serve` until the end of this."""
    words = ("-m", "fluvial", "serve", table, "--port", "0", "--warehouse", settings.warehouse)
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None, "it is piped"
            port = _port(process.stderr)
            yield Server(port, process, time.perf_counter() - began)
        finally:
            process.terminate()


def _port(lines: IO[str]) -> int:
    port = None
    for line in lines:
        found = READY.search(line)
        port = int(found[1]) if found else port
        if "ready:" in line and port is not None:
            return port
    raise SystemExit("fluvial serve has ended")


async def ask(server: Server, table: str, keys: list[str], clients: int) -> Taken:
    """Look keys up, shared among so many clients, each of which asks for the next when it has its answer."""
    left = iter(keys)
    seconds: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for key in left:
            began = time.perf_counter()
            writer.write(f"GET /tables/{table}/{key} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            row = json.loads(await reader.readexactly(size))
            seconds.append(time.perf_counter() - began)
            if row["customer"] != key:
                raise SystemExit(f"asked for {key}: {row}")
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Taken.of(seconds, time.perf_counter() - began)


def drawn(rows: int, count: int) -> list[str]:
    """Keys of the table, drawn by dice."""
    dice = random.Random(1)
    return [f"k{dice.randrange(rows)}" for _ in range(count)]
