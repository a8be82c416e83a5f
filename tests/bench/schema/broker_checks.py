"""
What it costs the broker to hold records of ten fields against their schema, at the levels `id` and `payload`.

Twice: the broker's processor time for each record that a real producer sends, batches compressed or not, and the check
by itself on one core. Processor time says the same on a busy machine.
"""

import io
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fluvial.registry.client import RegistryClient
from fluvial.registry.formats.avro.kind import AvroKind
from fluvial.registry.formats.avro.parse import parse
from log_broker.interfaces import Contract, Skip, Violation
from log_broker.records import Codec, build_batch
from log_broker.records.batch import read_header
from log_broker.records.validation import RecordRules, check_records, side_checks
from tests.bench.schema.registry_process import Running, node
from tests.bench.schema.rows import Options, Row

LEVELS = ("none", "id", "payload")
CODECS = ("none", "lz4", "zstd")
RECORDS = 400_000
BATCH_RECORDS = 1_000
CHECKED = 200_000
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "flight", "type": "int"},
        {"name": "tail", "type": ["null", "string"]},
        {"name": "origin", "type": "string"},
        {"name": "dest", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["DEPARTED", "ARRIVED"]}},
        {"name": "distance", "type": "double"},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "diverted", "type": "boolean"},
    ],
}


def measure(options: Options) -> Iterator[Row]:
    """The check alone, then a producer's records."""
    yield from _check_alone()
    records = RECORDS // 10 if options.quick else RECORDS
    with (
        tempfile.TemporaryDirectory() as folder,
        node(Path(folder) / "node") as running,
        RegistryClient(running.url) as registry,
    ):
        schema_id = registry.register("warm-value", json.dumps(FLIGHT))
        values = _values(schema_id)
        _produce(running, registry, "warm", "payload", "none", values, records // 10)
        for codec in CODECS:
            alone = 0.0
            for level in LEVELS:
                cpu, seconds = _produce(running, registry, f"{level}-{codec}", level, codec, values, records)
                name = f"produce, codec {codec}, {level}"
                yield Row(what=f"{name}: broker's processor time", value=cpu / records * 1e6, unit="µs/record")
                yield Row(what=f"{name}: with the producer beside it", value=records / seconds, unit="records/s")
                alone = cpu if level == "none" else alone
                if level != "none":
                    yield Row(what=f"{name}: more than none", value=100 * (cpu / alone - 1), unit="%")


def _values(schema_id: int) -> list[bytes]:
    parsed = fastavro.parse_schema(FLIGHT)
    values = []
    for number in range(BATCH_RECORDS):
        out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
        out.seek(5)
        row = {
            "carrier": "UA",
            "flight": number,
            "tail": f"N{number}" if number % 10 else None,
            "origin": "EWR",
            "dest": "IAH",
            "at": 1_357_034_400_000 + number,
            "kind": "ARRIVED" if number % 2 else "DEPARTED",
            "distance": 1400.0 + number,
            "delay": None if number % 3 else number - 500,
            "diverted": number % 50 == 0,
        }
        fastavro.schemaless_writer(out, parsed, row)
        values.append(out.getvalue())
    return values


def _produce(
    running: Running,
    registry: RegistryClient,
    topic: str,
    level: str,
    codec: str,
    values: list[bytes],
    records: int,
) -> tuple[float, float]:
    """Return the broker's processor time and the time that passed, in seconds."""
    servers = {"bootstrap.servers": running.bootstrap_servers}
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    config = {"fluvial.value.schema.validation": level}
    admin = AdminClient(servers)  # held: a client that is let go of takes its requests with it
    admin.create_topics([NewTopic(topic, num_partitions=1, config=config)])[topic].result(30)
    failures: list[object] = []
    producer = Producer(
        servers
        | {
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": BATCH_RECORDS,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
        }
    )
    before, began = _processor_seconds(running.pid), time.perf_counter()
    for number in range(records):
        producer.produce(topic, values[number % BATCH_RECORDS], b"%d" % (number % 997))
        if not number % 10_000:
            producer.poll(0)
    left = producer.flush(300)
    seconds = time.perf_counter() - began
    if failures or left:
        raise RuntimeError(f"{len(failures)} records were refused, {left} not sent: {failures[:1]}")
    return _processor_seconds(running.pid) - before, seconds


def _processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class _Known:
    """A registry in which the one schema is known already."""

    keyless: Violation | None = None

    def __init__(self, frame: bytes, skip: Skip | None) -> None:
        self.accepted = {frame: skip}

    def check_of(self, contract: Contract) -> "_Known":
        return self

    def violation(self, datum: bytes | None) -> Violation | None:
        raise AssertionError("every record is in order")


def _check_alone() -> Iterator[Row]:
    values = _values(1)
    skip = AvroKind().compile_skip(parse(json.dumps(FLIGHT)))
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
        batch = build_batch(((1_000 + at, b"key", value, ()) for at, value in enumerate(values)), codec=codec)
        header = read_header(batch)
        for level, known in (("id", _Known(values[0][:5], None)), ("payload", _Known(values[0][:5], skip))):
            rules = RecordRules("t", value_validation=level)
            began = time.process_time()
            for _ in range(CHECKED // BATCH_RECORDS):
                check_records(batch, header, rules, side_checks(rules, known), 0)
            rate = CHECKED / (time.process_time() - began)
            yield Row(what=f"{level} alone, codec {codec.name.lower()}", value=rate, unit="records/s per core")
