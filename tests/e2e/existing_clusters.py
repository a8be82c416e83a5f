"""Clusters that were there before fluvial: Apache Kafka from its own jars, and a Spark standalone cluster."""

import os
import re
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark
from local_platform import FLUVIAL, ROOT, free_port, wait_until

from tests.bench.broker.servers import Kafka

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 180.0
WORKERS = 2


@dataclass
class Started:
    """A process with its output in a file."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def await_line(self, pattern: str) -> str:
        """Return the first line of the output in which `pattern` is found."""

        def seen() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return re.search(pattern, self.log.read_text()) is not None

        wait_until(seen, START_SECONDS)
        found = re.search(f".*{pattern}.*", self.log.read_text())
        assert found is not None
        return found[0]

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@dataclass
class StandaloneSpark:
    """A Spark master with two workers; all in `folder`, all on loopback."""

    folder: Path
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
        port = free_port()
        self.spark_master = f"spark://127.0.0.1:{port}"
        master = self._spark("master", "master.Master", "--port", str(port), "--webui-port", "0")
        master.await_line("New state: ALIVE")
        for number in range(WORKERS):
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


class ExistingClusters(StandaloneSpark):
    """Apache Kafka and two registries over it as well."""

    def _start_all(self) -> None:
        kafka = Kafka(self.folder / "kafka")
        self._stack.callback(kafka.kill)
        kafka.start()
        self.bootstrap_server = kafka.address
        registries = [self._registry() for _ in range(2)]
        for each in registries:
            each[1].await_line("are served at")
        self.registry_url = ",".join(url for url, _ in registries)
        self._start_spark()

    @property
    def words(self) -> tuple[str, ...]:
        """How a command is told of them."""
        return (
            *("--bootstrap-server", self.bootstrap_server),
            *("--registry-url", self.registry_url),
            *super().words,
        )

    def _registry(self) -> tuple[str, Started]:
        port = free_port()
        command = [str(FLUVIAL), "registry", "--bootstrap-server", self.bootstrap_server, "--port", str(port)]
        return f"http://127.0.0.1:{port}", self._start(f"registry-{port}", command)


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
