"""
From an event's sending to its row in Spark SQL, while `follow` keeps a table up to date.

A producer sends EVENTS_A_SECOND; a reader asks Spark SQL again and again how far each partition has come. An event's
time runs from the call that sent it to the end of the first query that shows it, so the query's own time is in it.
"""

import bisect
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from rich.progress import Progress

from fluvial.config import Settings
from fluvial.entities import compacted
from fluvial.entities.continuous import follow
from fluvial.spark.session import build_session
from tests.bench.state.events import PARTITIONS, TOPIC, Contract, Source, broker, encoded

EVENTS_A_SECOND = 1_000
KEYS = 10_000
WARM_UP_S, MEASURED_S = 40, 60


class Steady:
    """Sends events evenly and keeps when each was sent, by partition and offset."""

    def __init__(self, servers: str) -> None:
        self.sent: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self._first = [-1] * PARTITIONS
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "partitioner": "murmur2_random"})

    def run(self, seconds: float, progress: Any) -> None:
        began = time.monotonic()
        for number in range(int(seconds * EVENTS_A_SECOND)):
            due = began + number / EVENTS_A_SECOND
            while (now := time.monotonic()) < due:
                self._producer.poll(min(due - now, 0.01))
            self._send(number)
            if number % EVENTS_A_SECOND == 0:
                progress(1)
        self._producer.flush(60)

    def first(self, partition: int) -> int:
        """The offset of the first event sent here."""
        return self._first[partition]

    def last(self, partition: int) -> int:
        """The offset of the last."""
        return self._first[partition] + len(self.sent[partition]) - 1

    def _send(self, number: int) -> None:
        name = b"sensor-%09d" % (number * 7919 % KEYS)
        sent = time.monotonic()

        def delivered(_error: object, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if self._first[partition] < 0:
                self._first[partition] = offset
            assert offset == self._first[partition] + len(self.sent[partition])
            self.sent[partition].append(sent)

        self._producer.produce(TOPIC, value=encoded(name, number), key=name, on_delivery=delivered)


def measure(progress: Progress) -> list[float]:
    """Seconds from send to sight of each event in the measured minute, sorted."""
    task = progress.add_task("produced to visible", total=WARM_UP_S + MEASURED_S)
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            Source(servers, KEYS).write_all_keys()
            settings = Settings(warehouse=str(folder / "ours"), bootstrap_servers=servers)
            spark = build_session(settings)
            stop = threading.Event()
            path = str(folder / "ours" / "compacted" / TOPIC)
            seen: list[list[tuple[int, float]]] = [[] for _ in range(PARTITIONS)]
            steady = Steady(servers)
            with ThreadPoolExecutor(2) as pool:
                following = pool.submit(follow, [compacted(TOPIC)], settings, spark, stop, schemas=Contract())
                first = Path(path) / "_delta_log" / f"{0:020d}.json"
                _until(first.exists, following)
                watching = pool.submit(_watch, spark, path, seen, stop)
                began = time.monotonic()
                try:
                    steady.run(WARM_UP_S + MEASURED_S, lambda step: progress.advance(task, step))
                    _until(
                        lambda: all(each and each[-1][0] >= steady.last(at) for at, each in enumerate(seen)), watching
                    )
                finally:
                    stop.set()
                if following.result():
                    raise SystemExit(f"the table was given up: {following.result()}")
                watching.result()
    return sorted(_latencies(steady, seen, began + WARM_UP_S))


def _until(reached: Callable[[], bool], work: "Future[Any]") -> None:
    """Wait, unless the work that leads there has ended."""
    while not reached():
        if work.done():
            raise SystemExit(f"it ended before its time: {work.result()}")
        time.sleep(0.05)


def _watch(spark: Any, path: str, seen: list[list[tuple[int, float]]], stop: threading.Event) -> None:
    """Note how far each partition is visible, and when that was known."""
    while not stop.is_set():
        rows = spark.sql(f"SELECT _partition, max(_offset) FROM delta.`{path}` GROUP BY _partition").collect()
        now = time.monotonic()
        for partition, offset in rows:
            if not seen[partition] or seen[partition][-1][0] < offset:
                seen[partition].append((offset, now))
        stop.wait(0.05)


def _latencies(steady: Steady, seen: list[list[tuple[int, float]]], since: float) -> list[float]:
    found = []
    for partition, sent in enumerate(steady.sent):
        offsets = [offset for offset, _ in seen[partition]]
        for number, at in enumerate(sent):
            if at >= since:
                shown = bisect.bisect_left(offsets, steady.first(partition) + number)
                found.append(seen[partition][shown][1] - at)
    return found
