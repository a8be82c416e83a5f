"""
Measures the main path on this machine: `make bench`, or `python -m tests.bench.main_path --rounds 3`.

Each round runs `fluvial demo` as a user does, in a fresh data directory on free ports, while a sampler adds up the
memory of all its processes (PSS: shared pages are counted once) and their processor time. Of that the node, broker and
registry in one process, is given its share: were it the bottleneck, it would be busy all the time. Then the round stops
the platform, starts it again and produces one record. Printed are the median and the range of each figure over the
rounds.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.free_ports import free_port

FLUVIAL = str(Path(sys.executable).parent / "fluvial")
ROOT = Path(__file__).parents[2]
SAMPLE_SECONDS = 0.25
# A broker does one thing after the other: at this part of a core it is what all else waits for.
BUSY = 0.9
_STEP = re.compile(r"(platform|contracts|events|Spark|tables|answers) ([\d.]+)")
_PUBLISHED = re.compile(r"([\d,]+) records published in ([\d.]+) s")
_TABLE = re.compile(r"^\s+((?:history|compacted|state|marts)\.\w+)\s+([\d,]+) rows\s+([\d.]+) s", re.MULTILINE)


class Sampler:
    """Watches processes until told to stop; peaks are in MiB, times in seconds of a core."""

    def __init__(self, root: psutil.Process, data_dir: Path) -> None:
        self._root = root
        self._data_dir = str(data_dir)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.broker_mib = 0.0
        self.together_mib = 0.0
        self.broker_busy = 0
        self.samples = 0
        self._cpu: dict[psutil.Process, float] = {}
        self._broker_cpu: dict[psutil.Process, float] = {}

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def broker_share(self) -> float:
        """The node's part of all processor time."""
        return sum(self._broker_cpu.values()) / sum(self._cpu.values())

    def _run(self) -> None:
        sampled = time.monotonic()
        while not self._stop.wait(SAMPLE_SECONDS):
            since, sampled = sampled, time.monotonic()
            total = used = 0.0
            nodes = self._nodes()
            for process in {*self._family(), *nodes}:
                try:
                    memory, times = process.memory_full_info(), process.cpu_times()
                except psutil.Error:
                    continue
                total += memory.pss / 2**20
                self._cpu[process] = times.user + times.system
                if process in nodes:
                    self.broker_mib = max(self.broker_mib, memory.rss / 2**20)
                    used += self._cpu[process] - self._broker_cpu.get(process, 0.0)
                    self._broker_cpu[process] = self._cpu[process]
            self.together_mib = max(self.together_mib, total)
            self.samples += 1
            self.broker_busy += used >= BUSY * (sampled - since)

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []

    def _nodes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "fluvial.node" in words and any(self._data_dir in word for word in words):
                found.append(process)
        return found


@contextmanager
def local_platform(folder: Path) -> Iterator[Callable[..., list[str]]]:
    """Yield what turns words into a `fluvial` command for a platform in `folder`; stop that platform at the end."""
    data_dir = folder / "data"

    def command(*words: str) -> list[str]:
        return [FLUVIAL, *words, "--data-dir", str(data_dir)]

    try:
        yield command
    finally:
        subprocess.run(command("down"), capture_output=True, check=False)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def run_demo(command: list[str], data_dir: Path) -> dict[str, float]:
    """Run the whole job; return its figures. Raises when it fails."""
    started = time.monotonic()
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    with (
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as job,
        Sampler(psutil.Process(job.pid), data_dir) as sampler,
    ):
        output = job.communicate()[0]
    if job.returncode != 0:
        raise RuntimeError(f"the demo ended with {job.returncode}:\n{output[-4000:]}")
    totals = next(line for line in output.splitlines() if " s in all: " in line)
    steps = {name: float(seconds) for name, seconds in _STEP.findall(totals)}
    tables = {name: (number(rows), float(seconds)) for name, rows, seconds in _TABLE.findall(output)}
    published = _PUBLISHED.search(output)
    assert published is not None, "the demo says how many records it published"
    records, seconds = number(published[1]), float(published[2])
    rows, history_seconds = tables["history.flight_events"]
    return {
        "make demo to the answer, warm caches (s)": time.monotonic() - started,
        "events published per second": records / seconds,
        "publishing (s)": steps["events"],
        "history.flight_events rows per second": rows / history_seconds,
        "state.aircraft, first run (s)": tables["state.aircraft"][1],
        "all tables and checks (s)": steps["tables"],
        "the broker's share of all processor time (%)": 100 * sampler.broker_share,
        "time in which the broker kept a core busy (%)": 100 * sampler.broker_busy / sampler.samples,
        "memory of the broker, peak RSS (MiB)": sampler.broker_mib,
        "memory of everything together, peak PSS (MiB)": sampler.together_mib,
    }


def start_to_first_ack(command: Callable[..., list[str]], folder: Path) -> float:
    """Seconds from typing `fluvial up --detach` in a new folder to the first acknowledged record."""
    from confluent_kafka import Producer

    port = free_port()
    words = ("up", "--detach", "--port", str(port), "--registry-port", str(free_port()))
    started = time.monotonic()
    subprocess.run(command(*words), capture_output=True, check=True)
    acknowledged: list[Any] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "acks": "all", "linger.ms": 0})
    producer.produce("first", b"value", on_delivery=lambda error, message: acknowledged.append(error))
    producer.flush(30)
    assert acknowledged == [None], acknowledged
    return time.monotonic() - started


def one_round() -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with local_platform(folder) as command:
            words = ("--port", str(free_port()), "--registry-port", str(free_port()))
            figures = run_demo(command("demo", *words), folder / "data")
            started = time.monotonic()
            subprocess.run(command("demo", *words), cwd=ROOT, capture_output=True, check=True)
            figures["the same again, nothing new (s)"] = time.monotonic() - started
    with tempfile.TemporaryDirectory() as name, local_platform(Path(name)) as command:
        figures["fluvial up to the first acknowledged record (s)"] = start_to_first_ack(command, Path(name))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default 3)")
    parser.add_argument("--json", action="store_true", help="print every round's figures as one JSON array")
    options = parser.parse_args()
    progress = Console(stderr=True)
    rounds: list[Mapping[str, float]] = []
    for at in range(options.rounds):
        progress.print(f"round {at + 1} of {options.rounds}")
        rounds.append(one_round())
    if options.json:
        Console().print_json(json.dumps(rounds))
        return
    table = Table("figure", "median", "least", "most", title=f"{options.rounds} rounds, {os.cpu_count()} cores")
    for name in rounds[0]:
        values = [figures[name] for figures in rounds]
        shown = [statistics.median(values), min(values), max(values)]
        table.add_row(name, *(f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" for value in shown))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
