"""A whole platform as a user has it: real processes, started and asked through the `fluvial` command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from fluvial.client_settings import kafka_properties_of
from fluvial.kafka import KafkaCluster
from fluvial.local.state import client_properties
from fluvial.properties import NO_PROPERTIES
from tests.free_ports import free_ports_in_a_row

ROOT = Path(__file__).parents[2]
FLUVIAL = Path(sys.executable).parent / "fluvial"
STEP_TIMEOUT_S = 900
SECURED = bool(os.environ.get("FLUVIAL_TEST_SECURED"))
"""Whether a platform here is three brokers whose clients sign in over TLS, and not one in plain text."""
BROKERS = 3 if SECURED else 1
MAIN_JOB_UNTIL = None if os.environ.get("FLUVIAL_ROTA") else datetime(2013, 3, 1, tzinfo=UTC)
"""Of the year of flights each run of the tests takes the first months, and the rota all: None."""


@dataclass
class LocalPlatform:
    """One data directory with its own ports, driven through the command line only: `program`, run in `folder`."""

    data_dir: Path
    program: Path = FLUVIAL
    folder: Path = ROOT
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    brokers: int = BROKERS
    port: int = 0
    registry_port: int = 0
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = self.port or free_ports_in_a_row(2 * self.brokers)
        self.registry_port = self.registry_port or self.port + self.brokers

    def command(self, *words: str) -> list[str]:
        return [str(self.program), *words, "--data-dir", str(self.data_dir)]

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in self.inherited.items() if not name.startswith("FLUVIAL_")}
        return {**inherited, "COLUMNS": "160", "NO_COLOR": "1"}

    def run(self, *words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `fluvial WORDS…` to its end."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
            **options,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"fluvial {' '.join(words)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
            )
        return done

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start `fluvial WORDS…` in a process group of its own, its output in a file beside the data."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "started.log").open("a") as log:
            process = subprocess.Popen(
                self.command(*words),
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def up(self) -> None:
        ports = ("--port", str(self.port), "--registry-port", str(self.registry_port))
        self.run("up", "--detach", *ports, *self.layout_words())

    def down(self) -> None:
        """End everything that this platform has started."""
        for process in self.started:
            if process.poll() is None:
                kill_group(process)
        self.run("down", check=False)

    def layout_words(self) -> tuple[str, ...]:
        brokers = ("--brokers", str(self.brokers)) if self.brokers > 1 else ()
        return (*(("--secure",) if SECURED else ()), *brokers)

    def demo_words(self, *more: str) -> tuple[str, ...]:
        ports = ("--port", str(self.port), "--registry-port", str(self.registry_port))
        return ("demo", *ports, *self.layout_words(), *more)

    @property
    def cluster(self) -> KafkaCluster:
        """How any client reaches it."""
        found = client_properties(self.data_dir)
        properties = NO_PROPERTIES if found is None else kafka_properties_of(found)
        return KafkaCluster(f"127.0.0.1:{self.port}", properties)

    def main_job_words(self) -> tuple[str, ...]:
        until = () if MAIN_JOB_UNTIL is None else ("--until", f"{MAIN_JOB_UNTIL:%Y-%m-%d}")
        return self.demo_words(*until)

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("status", "--json").stdout)

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Ask as a user does: a process of its own, and its JSON."""
        return json.loads(self.run("sql", "--format", "json", query).stdout)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Ask in this process: the same session builder and names, without the start of a JVM for each question."""
        from fluvial.config import load_settings
        from fluvial.spark.session import build_session, run_sql

        settings = load_settings(data_dir=str(self.data_dir))
        spark = build_session(settings, "fluvial tests")
        return [row.asDict(recursive=True) for row in run_sql(spark, settings, query).collect()]

    def versions(self) -> dict[str, int]:
        """The newest Delta version of every table in the warehouse, read from the file names of the logs."""
        found = {}
        for log in (self.data_dir / "warehouse").glob("*/*/_delta_log"):
            newest = max(int(commit.stem) for commit in log.glob("[0-9]*.json"))
            found[f"{log.parent.parent.name}.{log.parent.name}"] = newest
        return found

    def node_pid(self) -> int:
        """The process of the first node."""
        return int(self.status()["nodes"][0]["pid"])


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for something that another process brings about; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {seconds} s: {condition}")
        time.sleep(0.05)


def kill(pid: int) -> None:
    """SIGKILL a process that is not our child, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def kill_group(process: "subprocess.Popen[str]") -> None:
    """SIGKILL a started command and everything it started in its process group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
