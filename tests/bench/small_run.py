"""
What `fluvial run` takes where little is new: `python -m tests.bench.small_run --rounds 5`.

The project that `fluvial init` makes, 200 new orders before each run; seconds from the command to its end. First each
run starts Spark for itself, then `fluvial serve --keep-spark` keeps a session. The first run of either is told apart:
it makes the table, or finds a JVM that has done nothing yet.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.main_path import FLUVIAL
from tests.free_ports import free_port

PROJECT = "small"
STARTED, KEPT = "Spark started by the command", "session kept by fluvial serve"
NOTE = "spark.json"  # of the session that is kept, in the platform's folder
KEPT_SECONDS_MAX = 120.0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.small_run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind after its first")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="bench-small-run-") as folder, project(Path(folder)) as home:
        taken = {STARTED: [run(home) for _ in range(rounds + 1)]}
        with kept(home):
            taken[KEPT] = [run(home) for _ in range(rounds + 1)]
    table = Table("session", "first run, s", "median of the others", "least to most")
    for side, (first, *others) in taken.items():
        table.add_row(side, f"{first:.1f}", f"{median(others):.1f}", f"{min(others):.1f} to {max(others):.1f}")
    Console(width=100).print(table)
    return 0


@contextmanager
def project(folder: Path) -> Iterator[Path]:
    """Make a project with a platform that runs; gives its folder."""
    do(["init", PROJECT], folder)
    home = folder / PROJECT
    do(["up", "--detach", "--port", str(free_port()), "--registry-port", str(free_port())], home)
    try:
        yield home
    finally:
        do(["down"], home)


@contextmanager
def kept(home: Path) -> Iterator[None]:
    """Keep a session of Spark."""
    command = [FLUVIAL, "serve", "--keep-spark", "--port", str(free_port())]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=home, stdout=quiet, stderr=quiet) as server:
        try:
            deadline = time.monotonic() + KEPT_SECONDS_MAX
            while not list(home.glob(f".fluvial/**/{NOTE}")):
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError(f"no session was kept within {KEPT_SECONDS_MAX:.0f} s")
                time.sleep(0.1)
            yield
        finally:
            server.terminate()


def run(home: Path) -> float:
    """Send 200 orders, bring the tables up to date, and return how long the latter took."""
    subprocess.run([sys.executable, "produce.py"], cwd=home, check=True, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    do(["run"], home)
    return time.monotonic() - began


def do(words: Sequence[str], folder: Path) -> None:
    """Run a command of fluvial's; raises where it fails."""
    done = subprocess.run([FLUVIAL, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"fluvial {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
