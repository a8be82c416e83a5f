"""A Spark standalone cluster of processes of its own, from the jars of the pip package."""

import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

ROOT = Path(__file__).parents[1]
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 180.0


@dataclass
class Started:
    """A process with its output in a file."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def await_line(self, pattern: str) -> str:
        """Return the first line of the output in which `pattern` is found."""
        end = time.monotonic() + START_SECONDS
        while (found := re.search(f".*{pattern}.*", self.log.read_text())) is None:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, f"{self.log}: no line with {pattern}"
            time.sleep(0.1)
        return found[0]

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@dataclass
class StandaloneSpark:
    """A Spark master with workers of a core each; all in `folder`, all on loopback."""

    folder: Path
    count: int = 2
    _stack: ExitStack = field(default_factory=ExitStack)
    workers: list[Started] = field(default_factory=list)

    def __enter__(self) -> Self:
        with self._stack:
            self._start_all()
            self._stack = self._stack.pop_all()
        return self

    def _start_all(self) -> None:
        self._start_spark()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def words(self) -> tuple[str, ...]:
        """How a command is told of it."""
        return ("--spark-master", self.spark_master)

    def executors(self) -> list[psutil.Process]:
        """The executors that the workers run now."""
        found = [
            each for worker in self.workers for each in psutil.Process(worker.process.pid).children(recursive=True)
        ]
        return [each for each in found if "CoarseGrainedExecutorBackend" in " ".join(_words_of(each))]

    def _start_spark(self) -> None:
        master = self._spark("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.spark_master = master.await_line("Starting Spark master at").split()[-1]
        master.await_line("New state: ALIVE")
        for number in range(self.count):
            work = ("--cores", "1", "--memory", "2g", "--work-dir", str(self.folder / f"work-{number}"))
            worker = self._spark(f"worker-{number}", "worker.Worker", *work, "--webui-port", "0", self.spark_master)
            self.workers.append(worker)
        for worker in self.workers:
            worker.await_line("Successfully registered with master")

    def _spark(self, name: str, role: str, *words: str) -> Started:
        program = SPARK_HOME / "bin" / "spark-class"
        return self._start(name, [str(program), f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1", *words])

    def _start(self, name: str, command: list[str]) -> Started:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        started = Started(process, log)
        self._stack.callback(started.end)
        return started


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
