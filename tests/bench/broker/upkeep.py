"""The loads that start brokers of their own: start, memory, many partitions, compaction, recovery after a kill."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.bench.broker.arena import KAFKA_DEFAULT, KAFKA_FLUSH, OURS_FSYNC, OURS_MEMORY, PROGRESS, Arena, Side, fresh
from tests.bench.broker.measuring import Sample, admin_of, await_leaders, create_topic, drive, median, stored
from tests.bench.broker.rows import Row, throughput_rows
from tests.bench.broker.servers import Broker

IDLE_SECONDS = 10.0
SETTLE_SECONDS = 3.0
COMPACTION_SECONDS_MAX = 300.0


def start(arena: Arena) -> list[Row]:
    """From the spawn of the process in an empty data directory to the first acknowledged record."""

    def run(kind: type[Broker]) -> float:
        with fresh(kind, arena.base) as broker:
            return broker.start()

    ours, kafka = _alternate(arena, "start to the first ack", run, "s")
    return [Row(group="start", load="start to the first ack", unit="s", ours=ours, kafka=kafka, aim=0.25, at_most=True)]


def memory(arena: Arena) -> list[Row]:
    """What a broker holds after a million messages; its page cache belongs to the system and is not counted."""
    count = arena.scale.count(1_000_000)
    held = {}
    for name, kind in arena.kinds.items():
        with fresh(kind, arena.base) as broker:
            broker.start()
            create_topic(broker, "bench", 4, ())
            load = {"topic": "bench", "partitions": 4, "mode": "produce", "messages": count, "value_bytes": 1000}
            drive(broker, "bulk", load)
            time.sleep(SETTLE_SECONDS)
            held[name] = broker.memory()
    what = "memory after 1 M messages"
    ours, kafka = held["ours"], held["Kafka"]
    return [
        Row(group="memory", load=what, unit="RSS MiB", ours=ours.rss, kafka=kafka.rss, aim=0.15, at_most=True),
        Row(group="memory", load=what, unit="PSS MiB", ours=ours.pss, kafka=kafka.pss, aim=0.15, at_most=True),
    ]


class _Many(NamedTuple):
    """What many partitions cost one broker."""

    create_seconds: float
    spread: dict[Side, Sample]
    one: Sample  # the same load on one partition
    stop_seconds: float
    start_seconds: float
    idle_cpu_percent: float
    rss_mib: float
    pss_mib: float


def partitions_1000(arena: Arena) -> list[Row]:
    return _partitions(arena, 1_000)


def partitions_10000(arena: Arena) -> list[Row]:
    return _partitions(arena, 10_000)


def _partitions(arena: Arena, partitions: int) -> list[Row]:
    partitions = arena.scale.count(partitions)
    arena.close()  # two idle brokers more would only disturb
    sides = {"ours": (OURS_MEMORY, OURS_FSYNC), "Kafka": (KAFKA_DEFAULT, KAFKA_FLUSH)}
    many = {name: _hold_many(arena, kind, partitions, sides[name]) for name, kind in arena.kinds.items()}
    ours, kafka = many["ours"], many["Kafka"]
    group = f"partitions-{partitions}"
    what = f"{partitions:,} partitions"
    rows = [
        Row(group=group, load=what, unit=unit, ours=mine, kafka=theirs, aim=1.0, at_most=True)
        for unit, mine, theirs in (
            ("s to create the topic", ours.create_seconds, kafka.create_seconds),
            ("s from start to the first ack", ours.start_seconds, kafka.start_seconds),
            ("s to stop in order", ours.stop_seconds, kafka.stop_seconds),
            ("% of a core when idle", ours.idle_cpu_percent, kafka.idle_cpu_percent),
            ("RSS MiB after start", ours.rss_mib, kafka.rss_mib),
            ("PSS MiB after start", ours.pss_mib, kafka.pss_mib),
        )
    ]
    for mine, theirs in ((OURS_MEMORY, KAFKA_DEFAULT), (OURS_FSYNC, KAFKA_DEFAULT), (OURS_FSYNC, KAFKA_FLUSH)):
        title = f"{what}, single records spread over all, 4x8: {mine.level} : Kafka {theirs.level}"
        rows += throughput_rows(group, title, ours.spread[mine], kafka.spread[theirs], aim=1.0)
    rows.append(
        Row(
            group=group,
            load=f"{what}: cost of a message beside that with one partition",
            unit="times",
            ours=ours.spread[OURS_MEMORY].cpu_micros / ours.one.cpu_micros,
            kafka=kafka.spread[KAFKA_DEFAULT].cpu_micros / kafka.one.cpu_micros,
        )
    )
    return rows


def _hold_many(arena: Arena, kind: type[Broker], partitions: int, sides: tuple[Side, ...]) -> _Many:
    with fresh(kind, arena.base) as broker:
        PROGRESS.print(f"{broker.name} with {partitions:,} partitions …", style="dim")
        broker.start()
        load = {"connections": 4, "in_flight": 8, "acks": 1, "value_bytes": 100, "seconds": arena.scale.seconds(4)}
        create_topic(broker, "bench-one", 1, sides[0].config)
        one: list[Sample] = [
            drive(broker, "raw_requests", {"topic": "bench-one", "partitions": 1, **load})
            for _ in range(arena.scale.rounds + 1)
        ][1:]
        create_seconds = create_topic(broker, "bench", partitions, ())
        spread = {}
        sent = 0
        for side in sides:
            _alter(broker, "bench", side.config)
            found = []
            for _ in range(arena.scale.rounds):
                sample = drive(broker, "raw_requests", {"topic": "bench", "partitions": partitions, **load})
                sent += sample.acknowledged
                found.append(sample)
            spread[side] = median(found)
            PROGRESS.print(f"  {side.level}: {spread[side].rate:,.0f}/s", style="dim", highlight=False)
        if (held_records := stored(broker, "bench", range(partitions))) != sent:
            raise RuntimeError(f"{broker.name} acknowledged {sent} records and holds {held_records}")
        began = time.monotonic()
        broker.stop()
        stop_seconds = time.monotonic() - began
        start_seconds = broker.start()
        await_leaders(broker, "bench", partitions)
        time.sleep(SETTLE_SECONDS)
        before = broker.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        idle = (broker.cpu_seconds() - before) / IDLE_SECONDS * 100
        held = broker.memory()
    return _Many(create_seconds, spread, median(one), stop_seconds, start_seconds, idle, held.rss, held.pss)


def compaction(arena: Arena) -> list[Row]:
    """Bytes of closed segments compacted a second: from the moment a full topic is made compacted to the end of it."""

    def run(kind: type[Broker]) -> float:
        with fresh(kind, arena.base) as broker:
            broker.cleaner_backoff_ms = 100
            broker.start()
            segment_bytes = max(int((128 << 20) * arena.scale.size), 1 << 20)
            create_topic(broker, "bench", 1, (("segment.bytes", str(segment_bytes)),))
            load = {"mode": "produce", "messages": arena.scale.count(600_000), "value_bytes": 1000, "keys": 200_000}
            drive(broker, "bulk", {"topic": "bench", "partitions": 1, "batch_bytes": 65_536, **load})
            closed = sorted((broker.data_dir / "bench-0").glob("*.log"))[:-1]
            size = sum(path.stat().st_size for path in closed)
            began = time.monotonic()
            _alter(broker, "bench", (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01")))
            _await_compacted(broker.data_dir / "cleaner-offset-checkpoint", "bench", broker)
            return size / 2**20 / (time.monotonic() - began)

    ours, kafka = _alternate(arena, "compaction", run, "MiB/s")
    what = "compaction of 600,000 records of 1000 B, 200,000 keys, batches of 64 KiB"
    return [Row(group="compaction", load=what, unit="MiB/s", ours=ours, kafka=kafka, aim=0.5)]


def _await_compacted(checkpoint: Path, name: str, broker: Broker) -> None:
    deadline = time.monotonic() + COMPACTION_SECONDS_MAX
    while time.monotonic() < deadline:
        lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        if any(line.startswith(f"{name} 0 ") and not line.endswith(" 0") for line in lines):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{broker.name} did not compact:\n{broker.log_text()[-2000:]}")


def recovery(arena: Arena) -> list[Row]:
    """A node that was killed starts on a log of 1 GiB of which nothing is known to be on the disk."""
    totals: dict[str, list[float]] = {name: [] for name in arena.kinds}
    extras: dict[str, list[float]] = {name: [] for name in arena.kinds}
    for at in range(arena.scale.rounds):
        for name, kind in _order(arena, at):
            with fresh(kind, arena.base) as broker:
                broker.start()
                create_topic(broker, "bench", 1, ())
                count = arena.scale.count(1 << 20)
                load = {"mode": "produce", "messages": count, "value_bytes": 1000, "batch_bytes": 65_536}
                acknowledged = drive(broker, "bulk", {"topic": "bench", "partitions": 1, **load}).acknowledged
                broker.kill()
                (broker.data_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
                unclean = broker.start()
                if stored(broker, "bench", range(1)) != acknowledged:
                    raise RuntimeError(f"{broker.name} lost acknowledged records")
                broker.stop()
                clean = broker.start()
            totals[name].append(unclean)
            extras[name].append(max(unclean - clean, 0.001))
            PROGRESS.print(f"recovery, {broker.name}: {unclean:.2f} s, clean {clean:.2f} s", style="dim")
    what = "recovery of a log of 1 GiB, batches of 64 KiB"
    found = {name: (statistics.median(totals[name]), statistics.median(extras[name])) for name in arena.kinds}
    (ours, ours_extra), (kafka, kafka_extra) = found["ours"], found["Kafka"]
    return [
        Row(
            group="recovery",
            load=what,
            unit="s from start to the first ack",
            ours=ours,
            kafka=kafka,
            aim=1.0,
            at_most=True,
        ),
        Row(group="recovery", load=what, unit="s more than a clean start", ours=ours_extra, kafka=kafka_extra),
    ]


def _order(arena: Arena, at: int) -> list[tuple[str, type[Broker]]]:
    kinds = list(arena.kinds.items())
    return kinds if at % 2 == 0 else kinds[::-1]


def _alternate(arena: Arena, what: str, run: Callable[[type[Broker]], float], unit: str) -> tuple[float, float]:
    """Return the medians of ours and Kafka's."""
    found: dict[str, list[float]] = {name: [] for name in arena.kinds}
    for at in range(arena.scale.rounds):
        for name, kind in _order(arena, at):
            found[name].append(run(kind))
            PROGRESS.print(f"{what}, {name}: {found[name][-1]:.2f} {unit}", style="dim", highlight=False)
    return statistics.median(found["ours"]), statistics.median(found["Kafka"])


def _alter(broker: Broker, name: str, config: tuple[tuple[str, str], ...]) -> None:
    """Set topic configs; those that a side sets and this one does not go back to the default."""
    wanted = dict(config)
    own = {key for side in (OURS_MEMORY, KAFKA_FLUSH) for key, _ in side.config if side.broker == broker.name}
    entries = [
        ConfigEntry(key, wanted[key], incremental_operation=AlterConfigOpType.SET)
        if key in wanted
        else ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
        for key in sorted({*own, *wanted})
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin = admin_of(broker)
    admin.incremental_alter_configs([resource], request_timeout=60.0)[resource].result()
