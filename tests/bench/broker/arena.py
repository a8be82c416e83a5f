"""Both brokers side by side, and rounds that alternate between them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from tests.bench.broker.measuring import Sample, drive, median, stored, topic
from tests.bench.broker.servers import Broker, Kafka, Ours, remove

PROGRESS = Console(stderr=True)
WARM_UP_RUNS_MAX = 8
WARM_FROM = 0.9  # of the run before


class Side(NamedTuple):
    """A broker and the durability of the topic."""

    broker: str
    level: str
    config: tuple[tuple[str, str], ...] = ()


OURS_MEMORY = Side("ours", "memory", (("fluvial.durability", "memory"),))
OURS_FSYNC = Side("ours", "fsync before ack")
KAFKA_DEFAULT = Side("Kafka", "default")
KAFKA_FLUSH = Side("Kafka", "flush.messages=1", (("flush.messages", "1"),))
ALL_SIDES = (OURS_MEMORY, KAFKA_DEFAULT, OURS_FSYNC, KAFKA_FLUSH)


class Scale(NamedTuple):
    """How long and how often: rounds, and a factor for message counts and seconds."""

    rounds: int
    size: float

    def count(self, messages: int) -> int:
        return max(int(messages * self.size), 100)

    def seconds(self, seconds: float) -> float:
        return max(seconds * self.size, 0.2)


@contextmanager
def fresh(kind: type[Broker], base: Path | None) -> Iterator[Broker]:
    """A broker of this kind that has never run, not started yet; it is gone with its data afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="bench-broker-", dir=base))
    broker = kind(folder)
    try:
        yield broker
    finally:
        broker.kill()
        remove(folder)


class Arena:
    """Two running brokers; started and warmed up when they are first needed, and kept for all loads that share them."""

    def __init__(self, base: Path | None, scale: Scale, brokers: Mapping[str, type[Broker]] | None = None) -> None:
        self.base = base
        self.scale = scale
        self._kinds = brokers or {"ours": Ours, "Kafka": Kafka}
        self._brokers: dict[str, Broker] = {}
        self._stack = ExitStack()
        self._topics = 0

    @property
    def warm_up_sides(self) -> Sequence[Side]:
        """What each of the brokers is warmed up with."""
        return (OURS_MEMORY, KAFKA_DEFAULT)

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what runs; the next use starts fresh brokers."""
        self._brokers.clear()
        self._stack.close()

    @property
    def kinds(self) -> Mapping[str, type[Broker]]:
        return self._kinds

    def broker(self, name: str) -> Broker:
        if not self._brokers:
            for at, kind in self._kinds.items():
                broker = self._stack.enter_context(fresh(kind, self.base))
                PROGRESS.print(f"starting {broker.name} …", style="dim")
                broker.start()
                self._brokers[at] = broker
            self._warm_up()
        return self._brokers[name]

    def topic_name(self) -> str:
        """A new name, as long as every other: the raw driver's answers are all of one size."""
        self._topics += 1
        return f"bench-{self._topics:04d}"

    def rounds(self, what: str, sides: Sequence[Side], run: Callable[[Broker, Side], Sample]) -> dict[Side, Sample]:
        """Measure every side in every round, the order reversed in each second one; return the medians."""
        found: dict[Side, list[Sample]] = {side: [] for side in sides}
        for at in range(self.scale.rounds):
            for side in sides if at % 2 == 0 else reversed(sides):
                sample = run(self.broker(side.broker), side)
                found[side].append(sample)
                latency = f", p99 {sample.p99_ms:.2f} ms" if sample.p99_ms else ""
                PROGRESS.print(
                    f"{what}, round {at + 1} of {self.scale.rounds}, {side.broker} {side.level}: "
                    f"{sample.rate:,.0f}/s, server CPU {sample.cpu_micros:.2f} µs{latency}",
                    style="dim",
                    highlight=False,
                )
        return {side: median(samples) for side, samples in found.items()}

    def produce(self, broker: Broker, side: Side, driver: str, load: Mapping[str, Any], partitions: int = 1) -> Sample:
        """Run a producing driver into a new topic and hold the broker to every acknowledged record."""
        with topic(broker, self.topic_name(), partitions, side.config) as name:
            sample = drive(broker, driver, {"topic": name, "partitions": partitions, **load})
            found = stored(broker, name, range(partitions))
            if found != sample.acknowledged:
                raise RuntimeError(f"{broker.name} acknowledged {sample.acknowledged} records and holds {found}")
        return sample

    def _warm_up(self) -> None:
        """
        A JVM that has just started runs at half its speed, so both take the same loads first.

        A broker is warm when its CPU time per message falls no further; that holds on a busy machine too.
        """
        bulk = {"mode": "produce", "messages": self.scale.count(200_000), "value_bytes": 1000}
        single = {"connections": 16, "in_flight": 4, "acks": 1, "value_bytes": 100, "seconds": self.scale.seconds(3)}
        for side in self.warm_up_sides:
            broker = self._brokers[side.broker]
            PROGRESS.print(f"warming up {broker.name} …", style="dim")
            before = float("inf")
            for _ in range(WARM_UP_RUNS_MAX):
                self.produce(broker, side, "bulk", bulk)
                cost = self.produce(broker, side, "raw_requests", single, partitions=4).cpu_micros
                if cost > before * WARM_FROM:
                    break
                before = cost
