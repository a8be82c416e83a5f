"""
What `--fresh` takes beyond the plain query: `python -m tests.bench.ask.fresh --tails 10000 1000000`.

A state of five folds over `--keys` keys has read as many events, and the tail of the log, of random keys, grows behind
it. Each answer is asked in turn with and without the tail, which must count every event. Printed are medians.
"""

import argparse
import io
import json
import random
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import fastavro
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from fluvial.config import Settings
from fluvial.fresh.freshness import Freshness
from fluvial.query.engine import Answer, Door, Engine
from fluvial.registry.client import RegistryClient
from fluvial.spark.session import build_session
from fluvial.tables import count, last_non_null, latest, max_, state, sum_
from fluvial.tables.drive.runner import materialize
from fluvial.testing.embedded import embedded_platform

SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "city", "type": ["null", "string"]}, {"name": "amount", "type": "double"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}"""
FIELDS = {
    "orders": count(),
    "spent": sum_("amount"),
    "largest": max_("amount"),
    "city": last_non_null("city"),
    "at": latest("at"),
}
STATEMENT = "select sum(orders) n, max(largest) m from state.customers"


def send(settings: Settings, identity: int, number: int, keys: int) -> None:
    """Append events of random keys to the topic."""
    schema = fastavro.parse_schema(json.loads(SCHEMA))
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    dice = random.Random(number)
    for index in range(number):
        key = dice.randrange(keys)
        body = io.BytesIO()
        event = {"city": f"city {key % 500}", "amount": dice.randrange(10_000) / 4, "at": 1_700_000_000_000 + index}
        fastavro.schemaless_writer(body, schema, event)
        value = b"\0" + identity.to_bytes(4, "big") + body.getvalue()
        producer.produce("orders", key=f"k{key}", value=value, partition=key % 3)
        if index % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit("not every event was taken")


def asked(door: Door) -> tuple[float, int]:
    """Seconds until the last row, and how many events are in the answer."""
    found: list[int] = []

    def take(answer: Answer) -> None:
        found.extend(row[0] for row in answer.rows())

    began = time.perf_counter()
    told = door.answer(STATEMENT, take, again=found.clear)
    if told.engine is not Engine.SAIL:
        raise SystemExit(f"{told.engine} answered")
    return time.perf_counter() - began, found[0]


def main(words: list[str] | None = None) -> None:
    """Build the table, let the log grow, ask, print."""
    parser = argparse.ArgumentParser(description="what --fresh takes beyond the plain query")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--tails", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(words)
    console = Console()
    declaration = state("customers", topic="orders", key="customer", fields=FIELDS)
    with tempfile.TemporaryDirectory(prefix="fluvial-bench-fresh-") as folder, embedded_platform() as platform:
        settings = replace(platform.settings(Path(folder) / "warehouse"), spark_master="local[2]")
        platform.broker.create_topic("orders", partitions=3)
        with RegistryClient(platform.registry_url) as schemas:
            identity = schemas.register("orders-value", SCHEMA)
            send(settings, identity, given.keys, given.keys)
            spark = build_session(settings, "bench-fresh", say=console.print)
            materialize(declaration, settings, spark, schemas=schemas)
            spark.stop()
            freshness = Freshness(settings=settings, declarations={declaration.table: declaration}, schemas=schemas)
            table = Table("records of tail", "plain, s", "--fresh, s", "beyond, s")
            behind = 0
            for tail in given.tails:
                send(settings, identity, tail - behind, given.keys)
                behind = tail
                with closing(
                    Door(settings=settings, ask_spark=lambda _: None, say=console.print, engine=Engine.SAIL)
                ) as door:
                    plain, fresh = [], []
                    for number in range(given.rounds + 1):
                        door.fresh = None
                        seconds, _ = asked(door)
                        door.fresh = freshness
                        more, counted = asked(door)
                        if counted != given.keys + tail:
                            raise SystemExit(f"{counted:,} events were counted, not {given.keys + tail:,}")
                        # The first of each opens files.
                        if number:
                            plain.append(seconds)
                            fresh.append(more)
                one, other = median(plain), median(fresh)
                table.add_row(f"{tail:,}", f"{one:.3f}", f"{other:.3f}", f"{other - one:.3f}")
            console.print(table)


if __name__ == "__main__":
    main()
