"""One measurement: clients in processes of their own, brokers, and what the log holds when all is over."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from heapq import merge
from typing import Any, NamedTuple, TypeVar

from tests.bench.broker.arena import PROGRESS
from tests.bench.broker.measuring import delete_topic, stored
from tests.bench.broker.servers import ROOT
from tests.bench.clients.measure import PATIENCE_SECONDS, Nodes, quantile

RECORDS = 500
VALUE_BYTES = 16
TOPIC = {
    # The disk is one for all brokers here, and in memory it is not what they wait for.
    "fluvial.durability": "memory",
    # A bound on the age of records has the broker look at each of them, as a contract or a required key would.
    "message.timestamp.before.max.ms": "86400000",
    "file.delete.delay.ms": "0",
}
CORES_A_CLIENT_PROCESS = 4

Side = TypeVar("Side")


class RecordsMissingError(Exception):
    """The log does not hold what was acknowledged."""


class Load(NamedTuple):
    """What is asked of some brokers; every request is one batch of so many records."""

    partitions: int
    clients: int
    seconds: float
    copies: int = 1
    think_seconds: float = 0.0
    records: int = RECORDS


class Sample(NamedTuple):
    """What a load found. CPU times are in cores: seconds of CPU a second."""

    rate: float  # requests a second
    p50_ms: float
    p99_ms: float
    broker_cores: float  # all brokers together
    client_cores: float
    records: int = RECORDS  # of a request

    @property
    def records_rate(self) -> float:
        return self.rate * self.records


def measure(running: Nodes, load: Load, config: Mapping[str, str] = TOPIC) -> Sample:
    """
    Put a load on a new topic, set up so, and hold the brokers to every record that they acknowledged.

    Raises RecordsMissingError when the log does not hold just these.
    """
    topic = running.topic(load.partitions, copies=load.copies, **config)
    sample, acknowledged = _driven(running, topic, load)
    found = stored(running, topic, range(load.partitions))  # type: ignore[arg-type]  # only the address is asked
    if found != acknowledged:
        raise RecordsMissingError(f"{acknowledged:,} records of {topic} were acknowledged, the log has {found:,}")
    # Only after all went well: on Ctrl-C the brokers are gone before this process, and nobody would answer.
    delete_topic(running, topic)  # type: ignore[arg-type]
    return sample


def median(samples: Sequence[Sample]) -> Sample:
    """The median of each figure by itself."""
    return Sample(*(statistics.median(figures) for figures in zip(*samples, strict=True)))


def rounds(count: int, sides: Mapping[Side, Callable[[], Sample]]) -> dict[Side, Sample]:
    """Measure every side in every round, the order reversed in each second one; return the medians."""
    found: dict[Side, list[Sample]] = {side: [] for side in sides}
    for at in range(count):
        for side in sides if at % 2 == 0 else reversed(list(sides)):
            sample = sides[side]()
            found[side].append(sample)
            PROGRESS.print(
                f"round {at + 1} of {count}, {side}: {sample.records_rate:,.0f} records/s, p50 {sample.p50_ms:.2f} ms, "
                f"p99 {sample.p99_ms:.2f} ms; brokers on {sample.broker_cores:.2f} cores, clients on "
                f"{sample.client_cores:.2f}",
                style="dim",
                highlight=False,
                markup=False,
            )
    return {side: median(samples) for side, samples in found.items()}


def client_processes() -> int:
    """How many processes the clients share: few, because the brokers are what is measured."""
    return max(1, (os.cpu_count() or 1) // CORES_A_CLIENT_PROCESS)


def _driven(running: Nodes, topic: str, load: Load) -> tuple[Sample, int]:
    """Return what a load found, and how many records were acknowledged."""
    processes = min(client_processes(), load.clients)
    requests = {
        "address": running.members[0].address,
        "topic": topic,
        "partitions": load.partitions,
        "connections": load.clients,
        "in_flight": 1,
        "acks": 1 if load.copies == 1 else -1,
        "value_bytes": VALUE_BYTES,
        "seconds": load.seconds,
        "records": load.records,
        # One broker leads all; ten thousand addresses would not fit on a command line.
        "leaders": _leaders(running, topic, load.partitions) if len(running.members) > 1 else (),
    }
    os.sync()  # what ran before has nothing left to write
    with ExitStack() as stack:
        shares = [
            {"load": requests, "number": at, "processes": processes, "think_seconds": load.think_seconds}
            for at in range(processes)
        ]
        clients = [stack.enter_context(_clients(share)) for share in shares]
        for client in clients:
            _line(client, "begin")
        before = _cpu_seconds(running)
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        answers = [json.loads(_line(client, "end")) for client in clients]
        spent = _cpu_seconds(running) - before
    seconds = max(answer["seconds"] for answer in answers)
    latencies = list(merge(*(answer["latencies_us"] for answer in answers)))
    sample = Sample(
        rate=len(latencies) / seconds,
        p50_ms=quantile(latencies, 0.5) / 1000,
        p99_ms=quantile(latencies, 0.99) / 1000,
        broker_cores=spent / seconds,
        client_cores=sum(answer["cpu_seconds"] for answer in answers) / seconds,
        records=load.records,
    )
    return sample, sum(answer["acknowledged"] for answer in answers)


@contextmanager
def _clients(share: Mapping[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, "-m", "tests.bench.scale.clients", json.dumps(share)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(client: "subprocess.Popen[str]", what: str) -> str:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise RuntimeError(f"the clients could not {what} their load")
    return line


def _cpu_seconds(running: Nodes) -> float:
    return sum(member.cpu_seconds() for member in running.members)


def _leaders(running: Nodes, topic: str, partitions: int) -> list[str]:
    """Return the address of each partition's leader; the node that is asked may not have heard of the topic yet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found := running.leaders(topic)) < partitions:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the leaders of {topic} are not known")
        time.sleep(0.05)
    return found
