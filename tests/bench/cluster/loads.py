"""The loads on two healthy clusters: bulk produce, single records and their latency, many partitions, and memory."""

import time
from typing import Any

from tests.bench.broker.arena import fresh
from tests.bench.broker.measuring import Sample, create_topic, drive
from tests.bench.broker.rows import Row, throughput_rows
from tests.bench.cluster.arena import KAFKA_DEFAULT, KAFKA_FLUSH, OURS, SIDES, ClusterArena, Side

MANY_PARTITIONS = 30
SETTLE_SECONDS = 5.0
# (connections, in flight, partitions)
SHAPES = ((1, 1, 1), (16, 1, 12), (16, 4, 12))
SPREAD_OVER = (10, 100, 1_000)
KEYS_SPREAD = 10_000
PAIRS = ((OURS, KAFKA_DEFAULT, 1.0), (OURS, KAFKA_FLUSH, 2.0))


def bulk(arena: ClusterArena) -> list[Row]:
    """One librdkafka producer, idempotent: into one partition, and into many that all three nodes lead."""
    rows = []
    for value_bytes, messages in ((1000, 200_000), (100, 1_000_000)):
        for partitions in (1, MANY_PARTITIONS):
            load = {"mode": "produce", "messages": arena.scale.count(messages), "value_bytes": value_bytes}

            def run(cluster: Any, side: Side, load: dict[str, object] = load, partitions: int = partitions) -> Sample:
                return arena.produce(cluster, side, "bulk", load, partitions)

            what = f"bulk produce, {value_bytes} B, {partitions} partition{'s' if partitions > 1 else ''}"
            rows += _rows(arena, "bulk", what, run)
    return rows


def single(arena: ClusterArena) -> list[Row]:
    """Requests of one record of 100 B each with acks=all, made beforehand."""
    rows = []
    for connections, in_flight, partitions in SHAPES:
        load = {
            "connections": connections,
            "in_flight": in_flight,
            "acks": -1,
            "value_bytes": 100,
            "seconds": arena.scale.seconds(3),
        }

        def run(cluster: Any, side: Side, load: dict[str, object] = load, partitions: int = partitions) -> Sample:
            return arena.produce(cluster, side, "raw_requests", load, partitions)

        rows += _rows(arena, "single", f"single records, {connections}x{in_flight}", run)
    return rows


def spread(arena: ClusterArena) -> list[Row]:
    """The same producer with keys in turn, so that all of more and more partitions get records all the time."""
    rows = []
    for partitions in SPREAD_OVER:
        load = {"mode": "produce", "messages": arena.scale.count(200_000), "value_bytes": 100, "keys": KEYS_SPREAD}

        def run(cluster: Any, side: Side, load: dict[str, object] = load, partitions: int = partitions) -> Sample:
            return arena.produce(cluster, side, "bulk", load, partitions)

        what = f"100 B, spread over {partitions:,} partitions"
        found = arena.rounds(what, (OURS, KAFKA_DEFAULT), run)
        rows += throughput_rows("spread", what, found[OURS], found[KAFKA_DEFAULT], aim=1.0, cpu_aim=None)
    return rows


def memory(arena: ClusterArena) -> list[Row]:
    """What three nodes hold together after a million messages; their page cache belongs to the system."""
    count = arena.scale.count(1_000_000)
    held = {}
    for name, kind in arena.kinds.items():
        with fresh(kind, arena.base) as cluster:
            cluster.start()
            create_topic(cluster, "bench", MANY_PARTITIONS, OURS.config)
            load = {"topic": "bench", "partitions": MANY_PARTITIONS, "mode": "produce", "value_bytes": 1000}
            drive(cluster, "bulk", {**load, "messages": count})
            time.sleep(SETTLE_SECONDS)
            held[name] = cluster.memory()
    what = "memory of three nodes after 1 M messages"
    ours, kafka = held["ours"], held["Kafka"]
    return [
        Row(group="memory", load=what, unit="RSS MiB", ours=ours.rss, kafka=kafka.rss, aim=0.15, at_most=True),
        Row(group="memory", load=what, unit="PSS MiB", ours=ours.pss, kafka=kafka.pss, aim=0.15, at_most=True),
    ]


def _rows(arena: ClusterArena, group: str, what: str, run: Any) -> list[Row]:
    found = arena.rounds(what, SIDES, run)
    rows = []
    for ours, kafka, aim in PAIRS:
        title = f"{what}: {ours.level} : Kafka {kafka.level}"
        rows += throughput_rows(group, title, found[ours], found[kafka], aim=aim, cpu_aim=None)
    return rows
