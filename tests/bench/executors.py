"""
Transforms that keep nothing, on more and more executors: `make bench-executors`.

A history decodes each record by itself, and a pipeline asks a service for each hundred rows, so that executors share
the work without a word between them. Both tables are made once for each count of executors, of one core each, on a
standalone cluster of that many workers. The broker, the driver, the service and the executors share this machine:
decoding grows with its cores, waiting for answers with the executors. Printed are events and rows a second, and a
difference between the tables is an error.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fluvial.config import Settings
from fluvial.spark.session import build_session
from fluvial.tables import Pipeline, history, pipeline
from fluvial.tables.drive.runner import materialize
from tests.bench.state.events import Contract, broker, encoded
from tests.standalone_spark import StandaloneSpark

TOPIC = "readings"
PARTITIONS = 8
BATCHES = 4
"""Of which the first warms."""
ASKED = 40_000
ROWS_A_CALL = 100
ANSWER_SECONDS = 0.05


def main() -> int:
    """Measure each count of executors and print them beside the first."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.executors", description=(__doc__ or "").split("\n")[1])
    cores = os.cpu_count() or 1
    counts = [count for count in (1, 2, 4, 8) if count <= max(cores, 4)]
    parser.add_argument("--executors", type=int, nargs="+", default=counts, help=f"counts (default: {counts})")
    parser.add_argument("--events", type=int, default=500_000, help="events of a batch")
    options = parser.parse_args()
    if min(options.executors) < 1 or options.events < PARTITIONS:
        parser.error(f"at least one executor and {PARTITIONS} events")
    seconds: dict[int, tuple[float, float]] = {}
    contents = set()
    with (
        tempfile.TemporaryDirectory(prefix="bench-executors-") as temporary,
        broker(Path(temporary, "log")) as servers,
        _service() as service,
        Progress(console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("writing events", total=1 + len(options.executors))
        _write(servers, options.events * BATCHES)
        for count in options.executors:
            progress.update(task, advance=1, description=f"{count} executors")
            folder = Path(temporary, str(count))
            with StandaloneSpark(folder, count) as spark:
                seconds[count], content = _measure(spark.spark_master, folder, servers, service, options.events)
                contents.add(content)
        progress.advance(task)
    if len(contents) != 1:
        raise SystemExit(f"the tables differ: {contents}")
    title = f"{cores} cores, {next(iter(contents))[0]:,} and {ASKED:,} rows"
    table = Table("executors", "events/s decoded", "", "rows/s asked for", "", title=title)
    first = seconds[options.executors[0]]
    for count, (decoded, asked) in seconds.items():
        table.add_row(
            str(count),
            *(f"{options.events / decoded:,.0f}", f"{first[0] / decoded:.2f}"),
            *(f"{ASKED / asked:,.0f}", f"{first[1] / asked:.2f}"),
        )
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


@contextmanager
def _service() -> Iterator[str]:
    """A service that takes its time; yields its address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(ANSWER_SECONDS)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(len(self.path)).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _asking(service: str) -> Pipeline:
    """A pipeline that asks the service for each hundred readings."""

    def ask(frames: Iterable[Any]) -> Iterator[Any]:
        for frame in frames:
            for start in range(0, len(frame), ROWS_A_CALL):
                some = frame.iloc[start : start + ROWS_A_CALL]
                with urlopen(f"{service}/{some['sensor'].iloc[0]}") as answer:
                    yield some.assign(answer=int(answer.read()))

    @pipeline(name="asked", inputs=[f"history.{TOPIC}"], version="1")
    def asked(readings: Any) -> Any:
        few = readings.where(f"sequence < {ASKED}").select("sensor", "sequence")
        return few.repartition(PARTITIONS, "sequence").mapInPandas(ask, "sensor STRING, sequence BIGINT, answer INT")

    return asked


def _measure(
    master: str, folder: Path, servers: str, service: str, events: int
) -> tuple[tuple[float, float], tuple[int, ...]]:
    """Seconds of a warm batch and of the pipeline, and what the tables hold: rows and the sums of their hashes."""
    settings = Settings(warehouse=str(folder / "warehouse"), bootstrap_servers=servers, spark_master=master)
    spark: Any = build_session(settings)
    try:
        took = []
        for _ in range(BATCHES):
            began = time.monotonic()
            result = materialize(history(TOPIC), settings, spark, schemas=Contract(), records_max=events)
            took.append(time.monotonic() - began)
            assert not result.skipped
        began = time.monotonic()
        materialize(_asking(service), settings, spark)
        asked = time.monotonic() - began
        content: list[int] = []
        for name in (f"history.{TOPIC}", "marts.asked"):
            rows = spark.table(name).selectExpr("count(*)", "sum(cast(xxhash64(*) AS DECIMAL(20)))").first()
            content += (rows[0], int(rows[1]))
        return (sorted(took[1:])[len(took[1:]) // 2], asked), tuple(content)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
