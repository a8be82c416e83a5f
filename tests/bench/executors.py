"""
A transform that keeps nothing, on more and more executors: `make bench-executors`.

A history decodes each record by itself, so that executors share its partitions without a word between them. One topic
is made into a table once for each count of executors, of one core each, on a standalone cluster of that many workers;
the broker, the driver and the executors share this machine. Printed are events a second, and a difference between the
tables is an error.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fluvial.config import Settings
from fluvial.entities import history
from fluvial.entities.runner import materialize
from fluvial.spark.session import build_session
from tests.bench.state.events import Contract, broker, encoded
from tests.standalone_spark import StandaloneSpark

TOPIC = "readings"
PARTITIONS = 8
BATCHES = 4
"""Of which the first warms."""


def main() -> int:
    """Measure each count of executors and print them beside the first."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.executors", description=(__doc__ or "").split("\n")[1])
    cores = os.cpu_count() or 1
    counts = [count for count in (1, 2, 4, 8) if count <= cores]
    parser.add_argument("--executors", type=int, nargs="+", default=counts, help=f"counts (default: {counts})")
    parser.add_argument("--events", type=int, default=500_000, help="events of a batch")
    options = parser.parse_args()
    if min(options.executors) < 1 or options.events < PARTITIONS:
        parser.error(f"at least one executor and {PARTITIONS} events")
    seconds: dict[int, float] = {}
    contents = set()
    with (
        tempfile.TemporaryDirectory(prefix="bench-executors-") as temporary,
        broker(Path(temporary, "log")) as servers,
        Progress(console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("writing events", total=1 + len(options.executors))
        _write(servers, options.events * BATCHES)
        for count in options.executors:
            progress.update(task, advance=1, description=f"{count} executors")
            folder = Path(temporary, str(count))
            with StandaloneSpark(folder, count) as spark:
                seconds[count], content = _measure(spark.spark_master, folder, servers, options.events)
                contents.add(content)
        progress.advance(task)
    if len(contents) != 1:
        raise SystemExit(f"the tables differ: {contents}")
    table = Table("executors", "events/s", "beside the first", title=f"{cores} cores, {next(iter(contents))[0]:,} rows")
    first = seconds[options.executors[0]]
    for count, each in seconds.items():
        table.add_row(str(count), f"{options.events / each:,.0f}", f"{first / each:.2f}")
    Console(width=100).print(table)
    return 0


def _write(servers: str, events: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(events):
        key = b"sensor-%09d" % (number % 100_000)
        value = encoded(key, number)
        # Partition by partition in turn, so that every batch has as much of each.
        while True:
            try:
                producer.produce(TOPIC, key=key, value=value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if left := producer.flush(300):
        raise RuntimeError(f"{left} events were not taken by the broker")


def _measure(master: str, folder: Path, servers: str, events: int) -> tuple[float, tuple[int, int]]:
    """Seconds of a warm batch, and what the table holds: its rows and the sum of their hashes."""
    settings = Settings(warehouse=str(folder / "warehouse"), bootstrap_servers=servers, spark_master=master)
    spark: Any = build_session(settings)
    try:
        took = []
        for _ in range(BATCHES):
            began = time.monotonic()
            result = materialize(history(TOPIC), settings, spark, schemas=Contract(), records_max=events)
            took.append(time.monotonic() - began)
            assert not result.skipped
        rows = spark.table(f"history.{TOPIC}").selectExpr("count(*)", "sum(cast(xxhash64(*) AS DECIMAL(20)))").first()
        return sorted(took[1:])[len(took[1:]) // 2], (rows[0], int(rows[1]))
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
