"""More brokers, more clients, more cores, more partitions: what each brings, and what a failover costs then."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from confluent_kafka import KafkaException

from tests.bench.broker.measuring import drive
from tests.bench.clients.measure import PATIENCE_SECONDS, Figure, Nodes, nodes, rate


def brokers(size: float) -> Iterator[Figure]:
    """One copy of each record over one, two and three brokers, and three copies over three; six partitions."""
    count = int(200_000 * size)
    for number in (1, 2, 3):
        with nodes(number) as running:
            topic = running.topic(6, copies=1)
            value = rate(running, topic, count, partitions=6)
            yield Figure(
                group="brokers", choice=f"{number} broker{'s' * (number > 1)}, one copy", what="records/s", value=value
            )
            if number == 3:
                value = rate(running, running.topic(6), count, partitions=6)
                yield Figure(group="brokers", choice="3 brokers, three copies", what="records/s", value=value)


def many_clients(size: float) -> Iterator[Figure]:
    """Connections that send one record after the other: to one broker with one partition, to three with twelve."""
    for number, partitions in ((1, 1), (3, 12)):
        with nodes(number) as running:
            for connections in (1, 4, 16, 64, 128):
                load = {"connections": connections, "in_flight": 1, "acks": 1, "value_bytes": 100}
                topic = running.topic(partitions)
                sent = {**load, "topic": topic, "partitions": partitions, "leaders": running.leaders(topic)}
                sample = drive(
                    _Whole(running),  # type: ignore[arg-type]
                    "raw_requests",
                    {**sent, "seconds": 2 * size},
                )
                choice = f"{number} broker{'s' * (number > 1)}, {connections} clients"
                yield Figure(group="clients", choice=choice, what="p99 ms", value=sample.p99_ms)
                yield Figure(group="clients", choice=choice, what="records/s", value=sample.rate)


class _Whole:
    """Nodes as the drivers see a broker."""

    name = "ours"

    def __init__(self, running: Nodes) -> None:
        self._running = running

    @property
    def address(self) -> str:
        return self._running.address

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self._running.members)


def cores(size: float) -> Iterator[Figure]:
    """A broker on one core and on all, with one partition and with eight: what a larger machine brings."""
    everything = os.sched_getaffinity(0)
    for count in (1, len(everything)):
        with nodes(1) as running:
            (member,) = running.members
            for thread in os.listdir(f"/proc/{member.process.pid}/task"):
                os.sched_setaffinity(int(thread), set(sorted(everything)[:count]))
            for partitions in (1, 8):
                found = rate(running, running.topic(partitions), int(200_000 * size), partitions=partitions)
                choice = f"{count} core{'s' * (count > 1)}, {partitions} partition{'s' * (partitions > 1)}"
                yield Figure(group="cores", choice=choice, what="records/s", value=found)


def partitions(size: float) -> Iterator[Figure]:
    """Topics of more and more partitions on three brokers: rate, and from a broker's kill until all are led again."""
    counts = (10, 100, 1_000) if size >= 0.5 else (4, 8)
    for count in counts:
        with nodes(3) as running:
            topic = running.topic(count)
            found = rate(running, topic, int(100_000 * size), partitions=count)
            yield Figure(group="partitions", choice=f"{count}", what="records/s", value=found)
            victim, *others = running.members
            began = time.perf_counter()
            victim.kill()
            _await(running, topic, count, others[0].address, but=victim.node_id)
            yield Figure(
                group="partitions", choice=f"{count}", what="s until all are led", value=time.perf_counter() - began
            )
            victim.launch()
            began = time.perf_counter()
            _await(running, topic, count, others[0].address, copies=3)
            value = time.perf_counter() - began
            yield Figure(group="partitions", choice=f"{count}", what="s until all are in sync", value=value)


def _await(running: Nodes, topic: str, count: int, asking: str, *, but: int = -1, copies: int = 0) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": asking, "log_level": 0})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(KafkaException):
            found = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
            led = all(each.leader not in (-1, but) for each in found)
            if len(found) == count and led and all(len(each.isrs) >= copies for each in found):
                return
        time.sleep(0.02)
    raise RuntimeError(f"the {count} partitions of {topic} do not recover")
