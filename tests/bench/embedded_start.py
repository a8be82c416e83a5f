"""
How long an embedded broker takes to be there, and what it costs.

    python -m tests.bench.embedded_start [--rounds 20] [--processes 5]

A process that has imported nothing pays for its imports once; every broker after the first is a directory, a thread and
a socket. `first` rows are of fresh processes, the others of one process. All times are of the wall clock, in ms.
"""

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

FIRST = """
import time
began = time.perf_counter()
import log_broker
context = log_broker.embedded()
broker = context.__enter__()
print((time.perf_counter() - began) * 1000)
context.__exit__(None, None, None)
"""


def elapsed_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


@contextlib.contextmanager
def entered(times: list[float], leaving: list[float], **options: Any) -> Iterator[Any]:
    """Enter an embedded broker and leave it, noting both times."""
    import log_broker

    context = log_broker.embedded(**options)
    began = time.perf_counter()
    broker = context.__enter__()
    times.append((time.perf_counter() - began) * 1000)
    try:
        yield broker
    finally:
        leaving.append(elapsed_ms(lambda: context.__exit__(None, None, None)))


def acknowledged(broker: Any) -> None:
    """Produce one record through librdkafka to a topic that is made for it, and wait for its acknowledgement."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    producer.produce("first", value=b"x")
    assert producer.flush(30) == 0


def received(broker: Any) -> None:
    """Have a new group read that record."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["first"])
    while consumer.poll(1) is None:
        pass
    consumer.close()


def measure(rounds: int, processes: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    found["first start in a fresh process, imports included"] = [
        float(subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True).stdout)
        for _ in range(processes)
    ]
    starts, stops, acks, groups = [], [], [], []  # type: ignore[var-annotated]
    with entered([], []):
        pass
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds):
        with entered(starts, stops) as broker:
            acks.append(elapsed_ms(lambda broker=broker: acknowledged(broker)))
            groups.append(elapsed_ms(lambda broker=broker: received(broker)))
    found["start"] = starts
    found["from there to one acknowledged record, topic made for it"] = acks
    found["from there until a new group has read it and left"] = groups
    found["stop"] = stops
    starts_with_topics: list[float] = []
    for _ in range(rounds):
        with entered(starts_with_topics, [], topics={f"t{number}": 10 for number in range(10)}):
            pass
    found["start with 10 topics of 10 partitions"] = starts_with_topics
    eight: list[float] = []
    for _ in range(max(1, rounds // 4)):
        with contextlib.ExitStack() as running:
            eight.append(elapsed_ms(lambda running=running: [running.enter_context(entered([], [])) for _ in range(8)]))
    found["8 brokers, one after the other, all running at the end"] = eight
    found["memory grown meanwhile (MiB)"] = [(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds, options.processes)
    if options.json:
        print(json.dumps(found))
        return
    print("| figure (ms) | median | least | most |\n| --- | --- | --- | --- |")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.0f} | {min(values):.0f} | {max(values):.0f} |")


if __name__ == "__main__":
    main()
