"""What readers cost and get: groups beside each other, members that work slowly, the time from send to sight."""

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer

from tests.bench.clients.measure import (
    PATIENCE_SECONDS,
    Figure,
    Nodes,
    nodes,
    one_by_one,
    paced,
    producer,
    quantile,
    read,
    reader,
)

WORK_SECONDS = 0.001
WARM = 20  # records at the beginning that are not counted


def fan_out(size: float) -> Iterator[Figure]:
    """A topic read by no group to five, each of which gets every record: the producer's rate, and all that is read."""
    count = int(100_000 * size)
    for groups in (0, 1, 5):
        with nodes(1) as running:
            topic = running.topic()
            sinks = [reader(running, topic) for _ in range(groups)]
            client = producer(running)
            client.produce(topic, b"first")
            client.flush(30)
            for sink in sinks:
                read(sink, 1)
            threads = [threading.Thread(target=read, args=(sink, count)) for sink in sinks]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for at in range(count):
                client.produce(topic, b"x" * 100)
                if at % 1000 == 0:
                    client.poll(0)
            client.flush(PATIENCE_SECONDS)
            produced = time.perf_counter() - began
            for thread in threads:
                thread.join()
            whole = time.perf_counter() - began
            for sink in sinks:
                sink.close()
        choice = f"{groups} groups"
        yield Figure(group="fan-out", choice=choice, what="records/s produced", value=count / produced)
        yield Figure(group="fan-out", choice=choice, what="records/s read by all", value=groups * count / whole)


def members(size: float) -> Iterator[Figure]:
    """A millisecond of work on each record, by as many members as there are partitions."""
    count = int(4_000 * size)
    with nodes(1) as running:
        for partitions in (1, 2, 4, 8):
            topic = running.topic(partitions)
            client = producer(running)
            for at in range(count):
                client.produce(topic, b"x", partition=at % partitions)
            client.flush(30)
            seconds = _work(running, topic, partitions, count)
            choice = f"{partitions} partitions, as many members"
            yield Figure(group="members", choice=choice, what="records/s worked on", value=count / seconds)


def _work(running: Nodes, topic: str, members: int, count: int) -> float:
    done = [0] * members
    stop = threading.Event()
    ready = threading.Barrier(members + 1)

    def work(at: int) -> None:
        client = Consumer(
            {
                "bootstrap.servers": running.address,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "fetch.queue.backoff.ms": 0,
                "log_level": 0,
            }
        )
        client.subscribe([topic])
        while len(client.assignment()) != 1:
            client.poll(0.05)
            client.pause(client.assignment())
        ready.wait(PATIENCE_SECONDS)
        client.resume(client.assignment())
        while not stop.is_set():
            message = client.poll(0.05)
            if message is not None and message.error() is None:
                time.sleep(WORK_SECONDS)
                done[at] += 1
        client.close()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(members)]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE_SECONDS)
    began = time.perf_counter()
    while sum(done) < count * 0.98:  # a few may have come to a member before all had their partition
        time.sleep(0.005)
    seconds = time.perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    return seconds


def sight(size: float) -> Iterator[Figure]:
    """From the call of send until a reader has the record: three copies, acks=all, each on the disk of all."""
    with nodes(3) as running:
        for per_second in (10, 100, 1_000):
            topic = running.topic()
            sink, client = reader(running, topic), producer(running, linger_ms=0)
            count = WARM + max(30, int(3 * per_second * size))
            times: list[float] = []

            def look(sink: Any = sink, count: int = count, times: list[float] = times) -> None:
                while len(times) < count:
                    message = sink.poll(1)
                    if message is not None and message.error() is None:
                        times.append((time.perf_counter() - float(message.value())) * 1000)

            looking = threading.Thread(target=look)
            looking.start()

            def send(_: int, client: Any = client, topic: str = topic) -> None:
                client.produce(topic, repr(time.perf_counter()))
                client.poll(0)

            paced(count, per_second, send)
            client.flush(30)
            looking.join()
            sink.close()
            times = sorted(times[WARM:])
            for share in (0.5, 0.9, 0.99):
                choice, what = f"{per_second} records/s", f"p{share * 100:.0f} ms"
                yield Figure(group="sight", choice=choice, what=what, value=quantile(times, share))


def silence(size: float) -> Iterator[Figure]:
    """The producer's waiting time while three readers follow the topic, and after all of them have stopped."""
    with nodes(1) as running:
        topic = running.topic()
        stop = threading.Event()

        def follow() -> None:
            sink = reader(running, topic)
            while not stop.is_set():
                sink.consume(1000, 0.05)
            sink.close()

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        for choice in ("three readers", "none any more"):
            times = one_by_one(running, topic, max(100, int(1_000 * size)))
            for share in (0.5, 0.99):
                what = f"p{share * 100:.0f} ms"
                yield Figure(group="silence", choice=choice, what=what, value=quantile(times, share))
            stop.set()
            for thread in threads:
                thread.join()


def locks(size: float) -> Iterator[Figure]:
    """Counters that four writers raise: in rows of SQLite under its lock, and folded from events without one."""
    writers, each = 4, int(1_000 * size)

    def in_threads(work: Callable[[int], None]) -> float:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory(prefix="bench-clients-") as folder:
        path = f"{folder}/rows.db"
        with contextlib.closing(sqlite3.connect(path)) as store:
            store.executescript("PRAGMA journal_mode = WAL; CREATE TABLE counters (id INTEGER PRIMARY KEY, n INTEGER)")
            store.executemany("INSERT INTO counters VALUES (?, 0)", [(key,) for key in range(20)])
            store.commit()

        def raise_rows(number: int) -> None:
            with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE_SECONDS, isolation_level=None)) as store:
                store.execute("PRAGMA synchronous = FULL")
                for at in range(each):
                    store.execute("BEGIN IMMEDIATE")
                    store.execute("UPDATE counters SET n = n + 1 WHERE id = ?", ((number + at) % 20,))
                    store.execute("COMMIT")

        seconds = in_threads(raise_rows)
        with contextlib.closing(sqlite3.connect(path)) as store:
            (total,) = store.execute("SELECT SUM(n) FROM counters").fetchone()
    yield Figure(group="locks", choice="rows under a lock", what="updates/s", value=total / seconds)
    with nodes(1) as running:
        topic = running.topic()

        def send(number: int) -> None:
            client = producer(running)
            for at in range(each):
                client.produce(topic, b"1", b"%d" % ((number + at) % 20))
            client.flush(PATIENCE_SECONDS)

        began = time.perf_counter()
        in_threads(send)
        counters: Counter[bytes] = Counter()
        sink: Any = reader(running, topic)
        while counters.total() < writers * each:
            for message in sink.consume(1_000, 0.1):
                counters[message.key()] += int(message.value())
        sink.close()
        seconds = time.perf_counter() - began
    if total != counters.total():
        raise RuntimeError(f"{total} updates in rows, {counters.total()} in the fold")
    yield Figure(group="locks", choice="events, folded", what="updates/s", value=total / seconds)
