"""The nodes, the clients and the clock of `python -m tests.bench.clients`."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.cluster.servers import OurMember
from tests.free_ports import free_ports

START_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: of which group, under which choice, what it is."""

    group: str
    choice: str
    what: str
    value: float


class Nodes:
    """So many nodes of ours, each a process and a voter."""

    def __init__(self, folder: Path, count: int) -> None:
        ports = free_ports(count)
        voters = ",".join(f"{at}@127.0.0.1:{port}" for at, port in enumerate(ports))
        self.members = [OurMember(folder / f"n{at}", at, port, voters) for at, port in enumerate(ports)]
        self._topics = 0

    @property
    def address(self) -> str:
        return ",".join(member.address for member in self.members)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def start(self) -> None:
        for member in self.members:
            member.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_up():
            if time.monotonic() > deadline:
                raise RuntimeError("the nodes do not come up:\n" + self.members[0].log_text()[-2000:])
            time.sleep(0.1)

    def _is_up(self) -> bool:
        with contextlib.suppress(KafkaException):
            return len(self.admin.list_topics(timeout=2).brokers) == len(self.members)
        return False

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def topic(self, partitions: int = 1, *, copies: int | None = None, **config: str) -> str:
        """Make a topic of a name of its own whose replicas are all in sync."""
        self._topics += 1
        name = f"bench-{self._topics}"
        factor = min(3, len(self.members)) if copies is None else copies
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, factor, config=settings)])[name].result(120)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = self.admin.list_topics(name, timeout=30).topics[name].partitions.values()
            if len(found) == partitions and all(len(each.isrs) == factor and each.leader >= 0 for each in found):
                return name
            if time.monotonic() > deadline:
                raise RuntimeError(f"the replicas of {name} do not get in sync")
            time.sleep(0.05)

    def leaders(self, topic: str) -> list[str]:
        """The address of each partition's leader."""
        found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [self.members[found[at].leader].address for at in sorted(found)]


@contextlib.contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """Run so many nodes on a folder that goes with them."""
    with tempfile.TemporaryDirectory(prefix="bench-clients-") as folder:
        running = Nodes(Path(folder), count)
        try:
            running.start()
            yield running
        finally:
            running.stop()


def producer(running: Nodes, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer(
        {
            "bootstrap.servers": running.address,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
            **named,
        }
    )


def reader(running: Nodes, topic: str, partitions: int = 1, *, offset: int = 0) -> Consumer:
    """A reader of a topic that makes no group."""
    client = Consumer(
        {
            "bootstrap.servers": running.address,
            "group.id": "none",
            "fetch.queue.backoff.ms": 0,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    client.assign([TopicPartition(topic, at, offset) for at in range(partitions)])
    return client


def read(client: Consumer, count: int) -> None:
    """Read so many records."""
    found = 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while found < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{found} of {count} records came")
        found += sum(1 for message in client.consume(min(10_000, count - found), 0.1) if message.error() is None)


def rate(
    running: Nodes,
    topic: str,
    count: int,
    *,
    size: int = 100,
    partitions: int = 1,
    compressible: bool = False,
    **how: Any,
) -> float:
    """
    Records a second: `count` of `size` bytes, from the first send until a reader of all partitions has the last.

    The window is the whole run, counted where the records arrive, not where they are sent.
    """
    client, sink = producer(running, **how), reader(running, topic, partitions)
    value = b"a line of a log, as such lines are " * (size // 35 + 1) if compressible else os.urandom(size)
    value = value[:size]
    for at in range(partitions):  # all connections are there when the clock starts
        client.produce(topic, value, partition=at)
    client.flush(30)
    read(sink, partitions)
    began = time.perf_counter()
    arriving = threading.Thread(target=read, args=(sink, count))
    arriving.start()
    for at in range(count):
        client.produce(topic, value, partition=at % partitions)
        if at % 1000 == 0:
            client.poll(0)
    if client.flush(PATIENCE_SECONDS):
        raise RuntimeError("not everything was acknowledged")
    arriving.join()
    seconds = time.perf_counter() - began
    sink.close()
    return count / seconds


def one_by_one(running: Nodes, topic: str, count: int, **how: Any) -> list[float]:
    """Send a record, wait for its answer, send the next; return the times in ms, sorted."""
    client = producer(running, linger_ms=0, **how)
    times = []
    for at in range(count + 20):
        began = time.perf_counter()
        client.produce(topic, b"x" * 100, partition=0)
        if client.flush(PATIENCE_SECONDS):
            raise RuntimeError("a record was not acknowledged")
        if at >= 20:
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)


def quantile(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share))]


def paced(count: int, per_second: float, act: Callable[[int], None]) -> None:
    """Do something at a steady rate; what falls behind is caught up with."""
    began = time.perf_counter()
    for at in range(count):
        wait = began + at / per_second - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        act(at)
