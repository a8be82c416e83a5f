"""
From an event's sending to its sight in Spark SQL, while `follow` keeps a table up to date, or a mart behind one.

A producer sends EVENTS_A_SECOND. An event's time runs from the call that sent it to the moment from which a query that
begins shows it: that of the commit, whose file is waited for. Now and then a query is asked, timed, and held to that.
"""

import bisect
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import Message, Producer
from rich.progress import Progress

from fluvial.config import Settings
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp
from fluvial.delta.stamp import Stamp
from fluvial.spark.session import build_session
from fluvial.tables import Declaration, compacted, pipeline
from fluvial.tables.drive.continuous import follow
from tests.bench.state.events import PARTITIONS, TOPIC, Contract, Source, broker, encoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


class Watched(Protocol):
    """The table whose rows are waited for."""

    @property
    def declarations(self) -> Sequence[Declaration]:
        """It, and what it is made from."""

    @property
    def folder(self) -> str:
        """Where it lies in the warehouse."""

    @property
    def query(self) -> str:
        """Has a row of (partition, greatest offset) for each partition; `{0}` is the table."""

    def offsets(self, commit: Commit, warehouse: Path) -> Mapping[int, int]:
        """The greatest offset that a commit of the table shows of each partition."""


class TopicTable:
    """A table of the topic itself."""

    declarations = (compacted(TOPIC),)
    folder = f"compacted/{TOPIC}"
    query = "SELECT _partition, max(_offset) FROM delta.`{0}` GROUP BY _partition"

    def offsets(self, commit: Commit, warehouse: Path) -> Mapping[int, int]:
        stamp = Stamp.of(commit)
        ranges = {} if stamp is None else stamp.offsets
        return {partition: end - 1 for partition, (start, end) in ranges.items() if start < end}


# The last digit of a sensor's number left out: ten sensors of 10,000 are a zone.
ZONE = "left(sensor, 15)"


@pipeline(name="zones", inputs={f"compacted.{TOPIC}": ZONE}, key="zone", version="1")
def zones(readings: "DataFrame") -> "DataFrame":
    """A mart by key: the sensors of a zone, and how far each partition has come there."""
    from pyspark.sql import functions as sql

    newest = [
        sql.max(sql.expr(f"IF(_partition = {at}, _offset, NULL)")).alias(f"newest_{at}") for at in range(PARTITIONS)
    ]
    return readings.groupBy(sql.expr(ZONE).alias("zone")).agg(
        sql.avg("celsius").alias("celsius"), sql.countDistinct("kind").alias("kinds"), *newest
    )


class MartTable:
    """A mart behind that table."""

    declarations = (*TopicTable.declarations, zones)
    folder = "marts/zones"
    query = " UNION ALL ".join(f"SELECT {at}, max(newest_{at}) FROM delta.`{{0}}`" for at in range(PARTITIONS))

    def __init__(self) -> None:
        self._behind = TopicTable()
        self._read = -1
        self._offsets: dict[int, int] = {}

    def offsets(self, commit: Commit, warehouse: Path) -> Mapping[int, int]:
        stamp = MartStamp.of(commit)
        if stamp is None:
            return {}
        log, version = TableLog(None, str(warehouse / self._behind.folder)), stamp.inputs[f"compacted.{TOPIC}"].version
        for number in range(self._read + 1, version + 1):
            self._offsets |= self._behind.offsets(log.commit(number), warehouse)
        self._read = max(self._read, version)
        return self._offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Seconds from send to sight of each event, and of each query, both sorted."""

    events: list[float]
    queries: list[float]


def measure(progress: Progress, table: Watched) -> Visible:
    """Measure the events of MEASURED_S seconds."""
    task = progress.add_task(f"produced to visible in {table.folder}", total=WARM_UP_S + MEASURED_S)
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            Source(servers, KEYS).write_all_keys()
            settings = Settings(warehouse=str(folder / "ours"), bootstrap_servers=servers)
            spark = build_session(settings)
            stop = threading.Event()
            warehouse = Path(settings.warehouse)
            path = str(warehouse / table.folder)
            seen: list[list[tuple[int, float]]] = [[] for _ in range(PARTITIONS)]
            steady = Steady(servers)
            with ThreadPoolExecutor(3) as pool:
                following = pool.submit(follow, table.declarations, settings, spark, stop, schemas=Contract())
                first = Path(path) / "_delta_log" / f"{0:020d}.json"
                _until(first.exists, following)
                watching = pool.submit(_watch, table, warehouse, seen, stop)
                asking = pool.submit(_ask, spark, table.query.format(path), seen, stop)
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


def _watch(table: Watched, warehouse: Path, seen: list[list[tuple[int, float]]], stop: threading.Event) -> None:
    """Note how far each commit brings each partition, and when it was there."""
    log = TableLog(None, str(warehouse / table.folder))
    version = -1
    while not stop.is_set():
        newest, now = log.newest_version() or 0, time.monotonic()
        for number in range(version + 1, newest + 1):
            for partition, offset in table.offsets(log.commit(number), warehouse).items():
                seen[partition].append((offset, now))
        version = newest
        stop.wait(0.02)


def _ask(
    spark: Any, query: str, seen: list[list[tuple[int, float]]], stop: threading.Event
) -> list[tuple[float, float]]:
    """Ask now and then; when, and the seconds that it took. What was there when the query began must be shown."""
    asked = []
    while not stop.wait(QUERY_EVERY_S):
        there = [each[-1][0] if each else -1 for each in seen]
        began = time.monotonic()
        rows = spark.sql(query).collect()
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
