"""
The paths by which a fetch could bring a segment's bytes from the page cache to a socket.

    python -m tests.bench.broker.fetch_paths                 5 rounds of 1 GiB for each path and size
    python -m tests.bench.broker.fetch_paths --rounds 9 --mib 256

A server on the broker's event loop answers a client in a process of its own, one answer after the other, over TCP on
loopback without encryption. The rounds alternate between the paths; figures are medians of the rounds: the server's
processor time (all its threads) for a MiB, and MiB a second, of which the client is a part.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.broker.fetch_paths_server import ASKED, HEADER, PATHS, TOLD
from tests.bench.broker.servers import ROOT

MIB = 1 << 20
SIZES = {"64 KiB": 64 << 10, "1 MiB": MIB, "4 MiB": 4 * MIB}
FILE_BYTES = 256 * MIB  # more than the processor's caches hold


class Cost(NamedTuple):
    """Of one round."""

    cpu_us: float  # of the server, a MiB
    rate: float  # MiB a second


class Client:
    """Asks for one answer after the other, and keeps nothing of them."""

    def __init__(self, port: int) -> None:
        self._link = socket.create_connection(("127.0.0.1", port))
        self._buffer = bytearray(MIB)

    def round(self, path: int, size: int, count: int) -> Cost:
        cpu, began = self._server_cpu(), time.perf_counter()
        for at in range(count):
            self._link.sendall(ASKED.pack(path, at * size % FILE_BYTES, size))
            self._receive(len(HEADER) + size)
        seconds = time.perf_counter() - began
        mib = count * size / MIB
        return Cost((self._server_cpu() - cpu) / mib * 1e6, mib / seconds)

    def _server_cpu(self) -> float:
        self._link.sendall(ASKED.pack(0, 0, 0))
        self._receive(TOLD.size)
        return TOLD.unpack_from(self._buffer)[0]

    def _receive(self, length: int) -> None:
        while length:
            if not (got := self._link.recv_into(self._buffer, min(length, MIB))):
                raise ConnectionError("the server has gone")
            length -= got


def measured(rounds: int, mib: int) -> dict[tuple[str, str], list[Cost]]:
    """All rounds by size and path."""
    found: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        words = [sys.executable, "-m", "tests.bench.broker.fetch_paths_server", file.name]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            client = Client(int(server.stdout.readline()))
            try:
                for number in range(-1, rounds):  # the first is not counted
                    for name, size in SIZES.items():
                        for at, path in sorted(enumerate(PATHS), reverse=bool(number % 2)):
                            cost = client.round(at, size, mib * MIB // size)
                            if number >= 0:
                                found[name, path].append(cost)
            finally:
                server.kill()
    return found


def table_of(found: dict[tuple[str, str], list[Cost]]) -> Table:
    """Medians, and beside them the least and the most."""
    table = Table("answer", "path", "server CPU µs a MiB", "MiB a second")
    for (size, path), costs in found.items():
        columns = ([cost.cpu_us for cost in costs], [cost.rate for cost in costs])
        table.add_row(size, path, *(f"{median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})" for each in columns))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="for each path and size in a round (default 1024)")
    options = parser.parse_args()
    Console(width=120).print(table_of(measured(options.rounds, options.mib)))


if __name__ == "__main__":
    main()
