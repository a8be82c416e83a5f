"""Rounds of SIGKILL under load on one data directory, and the checks after each."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kill_loads import Administering, Committing, Compacted, Idempotent, Load, Plain, Transacting, Trimmed

ACKED_LEAST = 1_000
GAIN_LEAST = 2  # of every single load
STRAGGLER_SECONDS = 3
ROUND_SECONDS_MAX = 120
SETTINGS = ("log.cleaner.backoff.ms=200", "offsets.topic.num.partitions=4")


@dataclass
class Report:
    """What the rounds came to."""

    rounds: int = 0
    acked: int = 0
    problems: list[str] = field(default_factory=list)
    acked_by_load: dict[str, int] = field(default_factory=dict)
    recovery_seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {count}" for name, count in self.acked_by_load.items())
        slowest = max(self.recovery_seconds, default=0)
        return f"{self.rounds} rounds, {self.acked} acknowledged ({shares}); slowest start {slowest:.1f} s"


def run_rounds(
    folder: Path, rounds: int, seed: int, *, at_each: Callable[[Report], object] = lambda report: None
) -> Report:
    """Kill the broker `rounds` times, each after at least ACKED_LEAST acknowledged records, at a random moment."""
    rng = random.Random(seed)
    report = Report()
    broker = Broker(folder / "data")
    broker.start()
    loads: list[Load] = [
        Idempotent(broker.servers, seed),
        Plain(broker.servers, seed, "1"),
        Plain(broker.servers, seed, "all"),
        Compacted(broker.servers, seed),
        Trimmed(broker.servers, seed),
        Committing(broker.servers, seed),
        Administering(broker.servers, seed),
        Transacting(broker.servers, seed),
    ]
    try:
        for load in loads:
            load.start()
        for number in range(rounds):
            _until_acked(loads, ACKED_LEAST, rng)
            broker.kill()
            report.recovery_seconds.append(broker.start())
            for load in loads:
                report.problems += [f"round {number}: {problem}" for problem in load.check()]
            report.rounds += 1
            report.acked = sum(load.acked() for load in loads)
            at_each(report)
        for load in loads:
            load.stop()
        for load in loads:
            report.problems += load.failures + load.check_all()
        report.acked_by_load = {str(load): load.acked() for load in loads}
        report.acked = sum(report.acked_by_load.values())
        report.problems += [
            f"{name} got nothing acknowledged" for name, count in report.acked_by_load.items() if not count
        ]
        if report.acked < rounds * ACKED_LEAST:
            report.problems.append(f"only {report.acked} records were acknowledged in {rounds} rounds")
    finally:
        broker.kill()
    return report


def _until_acked(loads: list[Load], least: int, rng: random.Random) -> None:
    begun = [load.acked() for load in loads]
    deadline = time.monotonic() + ROUND_SECONDS_MAX
    stragglers_until = 0.0
    while True:
        gains = [load.acked() - before for load, before in zip(loads, begun, strict=True)]
        now = time.monotonic()
        if sum(gains) >= least:
            # A client that has to find its coordinator again may take its time; the next round begins without it.
            stragglers_until = stragglers_until or now + STRAGGLER_SECONDS
            if min(gains) >= GAIN_LEAST or now > stragglers_until:
                break
        assert now < deadline, f"the load stands still: {[(str(x), x.acked(), x.failures) for x in loads]}"
        time.sleep(0.01)
    time.sleep(rng.random() ** 2)


class Broker:
    """`python -m log_broker` on one port."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._log = data_dir.with_suffix(".log")
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> float:
        """Start it, and return how many seconds that took."""
        began = time.monotonic()
        words = ["--data-dir", str(self._data_dir), "--port", str(self._port)]
        for setting in SETTINGS:
            words += ["--set", setting]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "log_broker", *words], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 60)
        line = self._process.stdout.readline() if ready else ""
        if not line.startswith("listening on"):
            self.kill()
            raise AssertionError(f"the broker did not start:\n{self._log.read_text()[-5000:]}")
        self._port = int(line.rpartition(":")[2])
        return time.monotonic() - began

    def kill(self) -> None:
        if self._process is None:
            return
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
