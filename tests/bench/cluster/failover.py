"""What clients see while nodes die, return, and are restarted in order."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from tests.bench.broker.arena import PROGRESS, fresh
from tests.bench.broker.measuring import create_topic
from tests.bench.broker.rows import Row
from tests.bench.cluster.arena import SAFE, ClusterArena
from tests.bench.cluster.servers import NODES, START_SECONDS_MAX, Cluster, Member

SEND_SECONDS = 0.01
PARTITIONS_MANY = 1_000
FAILOVER_SECONDS_MAX = 180.0


def kill(arena: ClusterArena) -> list[Row]:
    """SIGKILL of the node that leads a partition, everything at its default: until its first record is acked again."""
    cases = {"SIGKILL of a leader": False, "SIGKILL of a leader that is the controller": True}
    rows = []
    for what, is_controller in cases.items():
        found: dict[str, list[float]] = {name: [] for name in arena.kinds}
        for at in range(arena.scale.rounds):
            names = list(arena.kinds)
            for name in names if at % 2 == 0 else reversed(names):
                cluster = arena.broker(name)
                seconds = _killed(cluster, arena.topic_name(), is_controller=is_controller)
                found[name].append(seconds)
                PROGRESS.print(f"{what}, {name}: {seconds:.2f} s", style="dim", highlight=False)
        ours, kafka = (statistics.median(found[name]) for name in ("ours", "Kafka"))
        unit = "s to the first ack"
        rows.append(Row(group="kill", load=what, unit=unit, ours=ours, kafka=kafka, aim=0.5, at_most=True))
    return rows


def _killed(cluster: Cluster, topic: str, *, is_controller: bool) -> float:
    """Kill the leader of a partition of a new topic, wait, and bring the node back."""
    create_topic(cluster, topic, 2 * NODES, SAFE)
    cluster.await_in_sync(topic)
    controller = cluster.controller()
    leaders = cluster.leaders(topic)
    partition = next(at for at, member in enumerate(leaders) if (member is controller) == is_controller)
    victim = leaders[partition]
    seconds = first_ack_after(cluster, topic, partition, victim.kill)
    bring_back(cluster, victim, topic)
    return seconds


def first_ack_after(cluster: Cluster, topic: str, partition: int, act: Callable[[], None]) -> float:
    """
    Send a record every 10 ms with a stock idempotent producer, `act`, and return the seconds until one is acked again.

    Only records that were sent after `act` count: one before may have been stored by then.
    """
    producer = Producer({"bootstrap.servers": cluster.address, "acks": "all", "enable.idempotence": True, **_QUIET})
    acked: list[float] = []
    acted = [float("inf")]

    def send() -> None:
        sent = time.monotonic()

        def told(error: Any, _: Any) -> None:
            if error is None and sent > acted[0]:
                acked.append(time.monotonic())

        producer.produce(topic, b"x" * 100, partition=partition, on_delivery=told)
        producer.poll(SEND_SECONDS)

    for _ in range(20):
        send()
    if producer.flush(60):
        raise RuntimeError(f"{cluster.name} takes no records")
    acted[0] = time.monotonic()
    act()
    while not acked:
        send()
        if time.monotonic() - acted[0] > FAILOVER_SECONDS_MAX:
            raise RuntimeError(f"{cluster.name}: no record was acked within {FAILOVER_SECONDS_MAX:.0f} s of the kill")
    producer.flush(60)
    return acked[0] - acted[0]


def restart(arena: ClusterArena) -> list[Row]:
    """Each node in turn is stopped in order and started again under a steady producer."""
    errors: dict[str, int] = dict.fromkeys(arena.kinds, 0)
    pauses: dict[str, list[float]] = {name: [] for name in arena.kinds}
    for _ in range(arena.scale.rounds):
        for name in arena.kinds:
            cluster = arena.broker(name)
            topic = arena.topic_name()
            create_topic(cluster, topic, 2 * NODES, SAFE)
            cluster.await_in_sync(topic)
            with _Steady(cluster, topic, 2 * NODES) as steady:
                for member in cluster.members:
                    member.stop()
                    bring_back(cluster, member, topic)
            errors[name] += len(steady.errors)
            pauses[name].append(steady.longest_pause)
            PROGRESS.print(
                f"restart of all nodes, {name}: {len(steady.errors)} errors {steady.errors[:3]}, "
                f"longest pause {steady.longest_pause:.2f} s",
                style="dim",
                highlight=False,
            )
    what = "restart of each node in turn"
    ours, kafka = (statistics.median(pauses[name]) for name in ("ours", "Kafka"))
    return [
        Row(group="restart", load=what, unit="errors a client saw", ours=errors["ours"], kafka=errors["Kafka"]),
        Row(group="restart", load=what, unit="s, longest pause", ours=ours, kafka=kafka, aim=1.0, at_most=True),
    ]


class _Steady:
    """A stock producer that sends a record to each partition in turn, every 10 ms, until the block ends."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self.errors: list[str] = []
        self.longest_pause = 0.0
        self._topic = topic
        self._partitions = partitions
        self._last = [0.0] * partitions
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": cluster.address, "acks": "all", **_QUIET})
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "_Steady":
        self._last = [time.monotonic()] * self._partitions
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if left := self._producer.flush(120):
            self.errors.append(f"{left} records never acked")

    def _send(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(self._topic, b"x" * 100, partition=number % self._partitions, on_delivery=self._told)
            self._producer.poll(SEND_SECONDS)
            number += 1

    def _told(self, error: Any, message: Any) -> None:
        now = time.monotonic()
        if error is not None:
            self.errors.append(error.str())
            return
        partition = message.partition()
        self.longest_pause = max(self.longest_pause, now - self._last[partition])
        self._last[partition] = now


def partitions(arena: ClusterArena) -> list[Row]:
    """A node dies that holds a replica of 1,000 partitions and leads a third: until each takes records again."""
    arena.close()  # two idle clusters more would only disturb
    count = arena.scale.count(PARTITIONS_MANY)
    took = {}
    created = {}
    for name, kind in arena.kinds.items():
        with fresh(kind, arena.base) as cluster:
            PROGRESS.print(f"{name} with 3 x {count:,} partitions …", style="dim")
            cluster.start()
            created[name] = create_topic(cluster, "bench", count, SAFE)
            cluster.await_in_sync("bench")
            controller = cluster.controller()
            victim = next(member for member in cluster.members if member is not controller)
            led = [at for at, member in enumerate(cluster.leaders("bench")) if member is victim]
            took[name] = _all_acked_after(cluster, led, victim.kill)
            PROGRESS.print(f"  {len(led)} partitions changed their leader in {took[name]:.2f} s", style="dim")
    group, what = "partitions", f"3 x {count:,} partitions"
    return [
        Row(
            group=group,
            load=f"{what}: SIGKILL of a node until each partition that it led has taken a record",
            unit="s",
            ours=took["ours"],
            kafka=took["Kafka"],
            aim=1.0,
            at_most=True,
        ),
        Row(group=group, load=f"{what}: to create the topic", unit="s", ours=created["ours"], kafka=created["Kafka"]),
    ]


def _all_acked_after(cluster: Cluster, led: list[int], act: Callable[[], None]) -> float:
    producer = Producer({"bootstrap.servers": cluster.address, "acks": "all", "enable.idempotence": True, **_QUIET})
    failed: list[str] = []

    def told(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error.str())

    for _ in range(2):  # the client knows every leader before one dies
        for partition in led:
            producer.produce("bench", b"x", partition=partition, on_delivery=told)
        producer.flush(60)
    began = time.monotonic()
    act()
    for partition in led:
        producer.produce("bench", b"x" * 100, partition=partition, on_delivery=told)
    if producer.flush(FAILOVER_SECONDS_MAX) or failed:
        raise RuntimeError(f"{cluster.name}: partitions take no records after the kill: {failed[:3]}")
    return time.monotonic() - began


def bring_back(cluster: Cluster, member: Member, topic: str) -> None:
    """Start a node again and return when all is as it was before it went."""
    member.launch()
    cluster.await_nodes(NODES, time.monotonic() + START_SECONDS_MAX)
    cluster.await_in_sync(topic)
    cluster.prefer_leaders()


_QUIET = {"log_level": 0}
