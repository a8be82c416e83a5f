"""
A table that lives in memory, as what is published; and runs of its publication that kill their own process.

    python table_in_memory.py SERVERS SEED TOPIC:KILL_AT…

For each topic two processes after one another: the first publishes version 0 and kills itself at a step, the second
publishes version 1. Nothing is imported beforehand that starts a thread, so that a fork is a process of its own.
"""

import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import confluent_kafka

from fluvial.config import Settings
from fluvial.spark.kafka import TopicBounds
from fluvial.tables.declare.declarations import publish
from fluvial.tables.publishing.planning import Step
from fluvial.tables.publishing.progress import Version
from fluvial.tables.publishing.run import PublicationRun
from fluvial.tables.publishing.transactions import Record

Rows = Mapping[str, str]
# Version 1 takes a away, changes b and é, leaves c and d as they are, and brings f.
VERSIONS: tuple[Rows, ...] = (
    {"a": "a0", "b": "b0", "c": "c0", "d": "d0", "é": "é0"},
    {"b": "b1", "c": "c0", "d": "d0", "é": "é1", "f": "f1"},
)
RECORDS_MAX = 2
AT_ONCE = 10


@dataclass(frozen=True)
class InMemory:
    """The versions of a table up to `last`."""

    last: int
    versions: tuple[Rows, ...] = VERSIONS

    def newest(self) -> Version:
        return self._version(self.last)

    def commit_of(self, number: int) -> str | None:
        return self._version(number).commit

    @contextmanager
    def changes(self, step: Step, *, unordered_max: int) -> Iterator[Iterator[Record]]:
        before = {} if step.since is None else self.versions[step.since.number]
        records = differences(before, self.versions[step.until.number])
        yield (record for record in records if step.after is None or record[0].encode() > step.after.encode())

    @contextmanager
    def differences(self, version: Version, bounds: TopicBounds) -> Iterator[Iterator[Record]]:
        raise NotImplementedError("only a table that Spark reads is compared with its topic")
        yield

    def _version(self, number: int) -> Version:
        return Version(number=number, commit=f"commit {number}")


def differences(before: Rows, after: Rows) -> list[Record]:
    keys = sorted(before.keys() | after.keys(), key=str.encode)
    changed = [key for key in keys if before.get(key) != after.get(key)]
    return [(key, after[key].encode() if key in after else None) for key in changed]


def publication_run(servers: str, topic: str, source: InMemory) -> PublicationRun:
    return PublicationRun(
        declaration=publish("state.things", topic=topic, key="id"),
        settings=Settings(bootstrap_servers=servers, local=False),
        source=source,
        records_max=RECORDS_MAX,
    )


class SelfKilling:
    """A producer that has its process killed before one of the calls that it gets, or during it."""

    calls = 0
    kill_at: float = 0

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._real = confluent_kafka.Producer(conf)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)
        if name == "poll":
            return call

        def counted(*arguments: Any, **keywords: Any) -> Any:
            SelfKilling.calls += 1
            if SelfKilling.kill_at == SelfKilling.calls:
                os.kill(os.getpid(), signal.SIGKILL)
            if SelfKilling.kill_at != SelfKilling.calls + 0.5:
                return call(*arguments, **keywords)
            killer = threading.Thread(target=_kill_soon, daemon=True)
            killer.start()
            try:
                call(*arguments, **keywords)
            finally:
                killer.join()

        return counted


def _kill_soon() -> None:
    time.sleep(random.random() * 0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(servers: str, topic: str, last: int, kill_at: float, seed: int) -> int:
    """Publish up to version `last`; the number of the signal that ended the process, 0 for none."""
    child = os.fork()
    if child == 0:
        try:
            random.seed(seed)
            SelfKilling.kill_at = kill_at
            real, confluent_kafka.Producer = confluent_kafka.Producer, SelfKilling
            SelfKilling.__init__.__globals__["confluent_kafka"] = type("Real", (), {"Producer": real})
            publication_run(servers, topic, InMemory(last)).run()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise RuntimeError(f"{topic}: version {last} was not published")
    return -status


def main() -> None:
    """Print, for each topic, the signal that ended its first run."""
    servers, seed, *wanted = sys.argv[1:]
    workers: list[int] = []
    for number, word in enumerate(wanted):
        topic, _, kill_at = word.partition(":")
        if len(workers) == AT_ONCE:
            _reap(workers)
        worker = os.fork()
        if worker == 0:
            try:
                ended = in_a_process(servers, topic, 0, float(kill_at), int(seed) + number)
                in_a_process(servers, topic, 1, 0, 0)
                os.write(1, f"{topic} {ended}\n".encode())
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        workers.append(worker)
    while workers:
        _reap(workers)


def _reap(workers: list[int]) -> None:
    pid, status = os.wait()
    workers.remove(pid)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"worker {pid} failed")


if __name__ == "__main__":
    main()
