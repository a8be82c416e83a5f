"""
What `fluvial run` takes where little is new: `python -m tests.bench.small_run --rounds 5`.

The project that `fluvial init` makes, 200 new orders before each run. First each run starts Spark for itself, then
`fluvial serve --keep-spark` keeps a session; the first run of either is told apart, as the second one's classes have
been loaded by it. Processor time is that of the command, its JVM and Python's workers, or of the server's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table

from tests.free_ports import free_port

FLUVIAL = str(Path(sys.executable).parent / "fluvial")
PROJECT = "small"
COLD, KEPT = "Spark started by the command", "session kept by fluvial serve"
NOTE = "spark.json"  # of the session that is kept, in the platform's folder
KEPT_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds from the command to its end, and of the processor."""

    wall: float
    processor: float


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.small_run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind after its first")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="bench-small-run-") as folder, project(Path(folder)) as (home, environment):
        taken = {COLD: [run(home, environment) for _ in range(rounds + 1)]}
        with kept(home, environment) as server:
            taken[KEPT] = [run(home, environment, server) for _ in range(rounds + 1)]
    table = Table("session", "first run: s (processor s)", "later: median s", "least–most", "processor s")
    for side, (first, *later) in taken.items():
        walls = [each.wall for each in later]
        processor = median(each.processor for each in later)
        table.add_row(
            side,
            f"{first.wall:.2f} ({first.processor:.2f})",
            f"{median(walls):.2f}",
            f"{min(walls):.2f}–{max(walls):.2f}",
            f"{processor:.2f}",
        )
    Console(width=120).print(table)
    return 0


@contextmanager
def project(folder: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Make a project with a platform that runs; gives its folder and the environment of its commands."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    do(["init", PROJECT], folder, environment)
    home = folder / PROJECT
    do(["up", "--detach", "--port", str(free_port()), "--registry-port", str(free_port())], home, environment)
    try:
        yield home, environment
    finally:
        do(["down"], home, environment)


@contextmanager
def kept(home: Path, environment: Mapping[str, str]) -> Iterator[psutil.Process]:
    """Keep a session; gives the process of the server."""
    command = [FLUVIAL, "serve", "--keep-spark", "--port", str(free_port())]
    with subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + KEPT_SECONDS_MAX
            while not list(home.glob(f".fluvial/**/{NOTE}")):
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError(f"no session was kept within {KEPT_SECONDS_MAX:.0f} s")
                time.sleep(0.1)
            yield psutil.Process(server.pid)
        finally:
            server.terminate()


def run(home: Path, environment: Mapping[str, str], server: psutil.Process | None = None) -> Took:
    """Send 200 orders and bring the tables up to date."""
    subprocess.run([sys.executable, "produce.py"], cwd=home, env=environment, check=True, stdout=subprocess.DEVNULL)
    before, began = processor_of(server), time.monotonic()
    do(["run"], home, environment)
    return Took(time.monotonic() - began, processor_of(server) - before)


def processor_of(server: psutil.Process | None) -> float:
    """Seconds of the processor in the commands that have ended, and in the server's processes."""
    spent = 0.0
    for each in [psutil.Process(), *([] if server is None else [server, *server.children(recursive=True)])]:
        with suppress(psutil.Error):
            times = each.cpu_times()
            own = times.user + times.system if server is not None and each.pid != os.getpid() else 0.0
            spent += own + times.children_user + times.children_system
    return spent


def do(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command of fluvial's; raises where it fails."""
    done = subprocess.run([FLUVIAL, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"fluvial {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
