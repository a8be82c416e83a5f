"""
From an event's sending to its sight in Spark SQL, while `follow` keeps a table up to date.

A producer sends EVENTS_A_SECOND. An event's time runs from the call that sent it to the moment from which a query that
begins shows it: that of the commit, whose file is waited for. Now and then a query is asked, timed, and held to that.
"""

import bisect
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from rich.progress import Progress

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp
from fluvial.spark.session import build_session
from fluvial.tables import compacted
from fluvial.tables.drive.continuous import follow
from tests.bench.state.events import PARTITIONS, TOPIC, Contract, Source, broker, encoded

EVENTS_A_SECOND = 1_000
KEYS = 10_000
WARM_UP_S, MEASURED_S = 60, 120
QUERY_EVERY_S = 5


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Seconds from send to sight of each event, and of each query, both sorted."""

    events: list[float]
    queries: list[float]


def measure(progress: Progress) -> Visible:
    """Measure the events of MEASURED_S seconds."""
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
            with ThreadPoolExecutor(3) as pool:
                following = pool.submit(follow, [compacted(TOPIC)], settings, spark, stop, schemas=Contract())
                first = Path(path) / "_delta_log" / f"{0:020d}.json"
                _until(first.exists, following)
                watching = pool.submit(_watch, path, seen, stop)
                asking = pool.submit(_ask, spark, path, seen, stop)
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
                queries = [seconds for at, seconds in asking.result() if at >= began + WARM_UP_S]
    return Visible(events=sorted(_latencies(steady, seen, began + WARM_UP_S)), queries=sorted(queries))


def _until(reached: Callable[[], bool], work: "Future[Any]") -> None:
    """Wait, unless the work that leads there has ended."""
    while not reached():
        if work.done():
            raise SystemExit(f"it ended before its time: {work.result()}")
        time.sleep(0.05)


def _watch(path: str, seen: list[list[tuple[int, float]]], stop: threading.Event) -> None:
    """Note how far each commit brings each partition, and when it was there."""
    log = TableLog(None, path)
    version = -1
    while not stop.is_set():
        newest, now = log.newest_version() or 0, time.monotonic()
        for number in range(version + 1, newest + 1):
            stamp = Stamp.of(log.commit(number))
            for partition, (start, end) in {} if stamp is None else stamp.offsets.items():
                if start < end:
                    seen[partition].append((end - 1, now))
        version = newest
        stop.wait(0.02)


def _ask(
    spark: Any, path: str, seen: list[list[tuple[int, float]]], stop: threading.Event
) -> list[tuple[float, float]]:
    """Ask now and then; when, and the seconds that it took. What was there when the query began must be shown."""
    asked = []
    while not stop.wait(QUERY_EVERY_S):
        there = [each[-1][0] if each else -1 for each in seen]
        began = time.monotonic()
        rows = spark.sql(f"SELECT _partition, max(_offset) FROM delta.`{path}` GROUP BY _partition").collect()
        asked.append((began, time.monotonic() - began))
        shown = dict(rows)
        if any(shown.get(partition, -1) < offset for partition, offset in enumerate(there)):
            raise SystemExit(f"a query shows {shown}, and {there} was committed before it")
    return asked


def _latencies(steady: Steady, seen: list[list[tuple[int, float]]], since: float) -> list[float]:
    found = []
    for partition, sent in enumerate(steady.sent):
        offsets = [offset for offset, _ in seen[partition]]
        for number, at in enumerate(sent):
            if at >= since:
                shown = bisect.bisect_left(offsets, steady.first(partition) + number)
                found.append(seen[partition][shown][1] - at)
    return found
