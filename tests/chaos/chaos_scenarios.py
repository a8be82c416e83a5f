"""
Failure scenarios by name: each a story with an expected end, told on a cluster of real processes.

A scenario is a function of a `Stage`; it asserts what must be and notes what was seen. Scenarios that want the same
cluster share it, one after the other, as long as each leaves it whole.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_cluster import Cluster
from chaos_nodes import OurNode
from chaos_security import MANNER
from chaos_workloads import PATIENT
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named story: what it shows, and the function that tells it."""

    name: str
    title: str
    tell: Callable[["Stage"], None]
    only_ours: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, title: str, *, only_ours: bool = False) -> Callable[[Any], Any]:
    """Enter a function under the name of a row."""

    def enter(tell: Callable[["Stage"], None]) -> Callable[["Stage"], None]:
        assert name not in SCENARIOS
        SCENARIOS[name] = Scenario(name=name, title=title, tell=tell, only_ours=only_ours)
        return tell

    return enter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a producer was told of one record."""

    value: str
    offset: int | None
    error: KafkaError | None

    @property
    def acked(self) -> bool:
        return self.error is None


@dataclass
class Stage:
    """Where a scenario is told: clusters to be had, and a place for notes."""

    name: str
    clusters: "Clusters"
    notes: list[str] = field(default_factory=list)
    fates: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.clusters.kind == "ours"

    def note(self, text: str) -> None:
        self.notes.append(text)

    def fate(self, setting: str, fault: str, outcome: str) -> None:
        """Note what became of acknowledged records, for the table of fates."""
        self.fates[setting, fault] = outcome
        self.note(f"{setting}, {fault}: {outcome}")

    def cluster(
        self,
        *,
        brokers: int = 3,
        separate_voters: int = 0,
        settings: Mapping[str, str] | None = None,
        kind: str | None = None,
    ) -> Cluster:
        """A cluster of the run's kind, unless another is named."""
        return self.clusters.get(brokers, separate_voters, settings or {}, kind or self.clusters.kind)

    def topic(self, suffix: str = "") -> str:
        """A name that no other scenario uses."""
        return f"{self.name.lower()}{suffix and '-'}{suffix}"


class Clusters:
    """The clusters of one run, kept for the next scenario that wants the same."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self._folder = folder
        self._made = 0
        self._wanted: tuple[object, ...] | None = None
        self._cluster: Cluster | None = None

    def get(self, brokers: int, separate_voters: int, settings: Mapping[str, str], kind: str) -> Cluster:
        """One at a time: processes of clusters that nobody uses would only take the processor."""
        wanted = (brokers, separate_voters, tuple(sorted(settings.items())), kind)
        if self._cluster is not None and self._wanted == wanted and self._is_whole(self._cluster):
            return self._cluster
        self.close()
        self._made += 1
        self._cluster = Cluster(
            self._folder / f"cluster-{self._made}",
            kind=kind,
            brokers=brokers,
            separate_voters=separate_voters,
            settings=settings,
        )
        self._wanted = wanted
        return self._cluster.start()

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def spoilt(self) -> str:
        """A scenario has failed on the cluster: it is not used again. Returns the ends of its logs."""
        report = self._cluster.report() if self._cluster is not None else ""
        self.close()
        return report

    def _is_whole(self, cluster: Cluster) -> bool:
        cluster.links.heal()
        cluster.links.break_connections()
        try:
            for node in cluster.nodes.values():
                if isinstance(node, OurNode):
                    node.fault(clock_ms=0, disk_full=False)
                if not node.is_running:
                    node.start()
                elif node.died() is not None:
                    return False
            cluster.await_brokers(cluster.brokers)
        except AssertionError:
            return False
        return True


# What scenarios are told with.


def values_of(stage: Stage, count: int, name: str = "r") -> list[str]:
    return [f"{stage.name}-{name}{number}" for number in range(count)]


def client(zone: str | None = None, **more: Any) -> dict[str, Any]:
    """A client's settings in one zone of the links; names with underscores for dots."""
    told = {name.replace("_", "."): value for name, value in more.items()}
    return {**PATIENT, **MANNER.client, "client.id": f"{zone}/client" if zone else "client", **told}


class Sending:
    """Records on their way to one partition, and what was told of each."""

    def __init__(self, servers: str, topic: str, *, partition: int = 0, zone: str | None = None, **config: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.told: list[Sent] = []
        self._producer = Producer(client(zone, bootstrap_servers=servers, linger_ms=0, **config))

    def send(self, values: Iterable[str]) -> "Sending":
        for value in values:
            self._producer.produce(self.topic, value, partition=self.partition, on_delivery=self._delivered)
        return self

    def wait(self, seconds: float = 30.0) -> list[Sent]:
        """Wait until all is told, or for so long; what is missing then was told nothing."""
        self._producer.flush(seconds)
        return self.told

    def abandon(self) -> None:
        """Give up what is on its way."""
        self._producer.purge()
        self._producer.flush(5)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, offset = message.value(), message.offset()
        known = offset if error is None and offset is not None and offset >= 0 else None
        self.told.append(Sent(value=(value or b"").decode(), offset=known, error=error))


def send(servers: str, topic: str, values: Iterable[str], *, seconds: float = 30.0, **config: Any) -> list[Sent]:
    """Send records and wait for what is told of them; after so long the producer gives up."""
    settings = {"acks": "all", "message_timeout_ms": int(seconds * 1000), **config}
    return Sending(servers, topic, **settings).send(values).wait(seconds + 10)


def acked(told: Iterable[Sent]) -> list[str]:
    return [sent.value for sent in told if sent.acked]


def read(
    servers: str, topic: str, partition: int = 0, *, begin: int = 0, seconds: float = 30.0, zone: str = "observer"
) -> list[str]:
    """Every value up to the high watermark; raises AssertionError if that cannot be had in time."""
    consumer = Consumer(
        client(
            zone,
            bootstrap_servers=servers,
            group_id="reading",
            enable_auto_commit=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
            isolation_level="read_committed",
            fetch_wait_max_ms=50,
        )
    )
    try:
        consumer.assign([TopicPartition(topic, partition, begin)])
        found: list[str] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    found.append((message.value() or b"").decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError(f"{topic}-{partition} cannot be read within {seconds} s, found {len(found)}")
    finally:
        consumer.close()


def expect(cluster: Cluster, topic: str, values: list[str], *, servers: str | None = None) -> None:
    """Wait until a partition reads so: a new leader shows what its predecessor showed once a follower has told it."""
    found: list[str] = []
    deadline = time.monotonic() + 60
    while found != values and time.monotonic() < deadline:
        with suppress(AssertionError):
            found = read(servers or cluster.bootstrap, topic)
    assert found == values, f"{topic} holds {len(found)} records instead of {len(values)}: {difference(found, values)}"


def difference(found: list[str], expected: list[str]) -> str:
    """Where two lists part."""
    at = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(found), len(expected)) if at is None else at
    return f"from {at} on {found[at : at + 5]} instead of {expected[at : at + 5]}"


def cannot_read(servers: str, topic: str, partition: int = 0, seconds: float = 3.0) -> bool:
    try:
        read(servers, topic, partition, seconds=seconds)
    except AssertionError:
        return True
    return False


def error_names(told: Iterable[Sent]) -> set[str]:
    return {sent.error.name() for sent in told if sent.error is not None}


@contextmanager
def killed(cluster: Cluster, *numbers: int) -> Iterator[None]:
    """Nodes are dead within the block, and back after it."""
    cluster.kill(*numbers)
    try:
        yield
    finally:
        with suppress(KafkaException):
            cluster.restart(*numbers)
