"""
The events that both sides read: Avro records of ten columns under Confluent's framing, and the broker that holds them.
"""

import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "readings"
PARTITIONS = 2
SCHEMA_ID = 1
KINDS = ["buoy", "mast", "ship", "station"]
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "namespace": "bench",
    "fluvial.key": "sensor",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": KINDS}},
        {"name": "sequence", "type": "long"},
        {"name": "celsius", "type": "double"},
        {"name": "pascal", "type": "double"},
        {"name": "humidity", "type": "int"},
        {"name": "battery", "type": "float"},
        {"name": "remark", "type": ["null", "string"]},
        {"name": "calibrated", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NEWER = 2
"""The id of the schema's second version, which has one field more."""
_STATION = {"name": "station", "type": ["null", "string"], "default": None}


class Contract:
    """The registry of this benchmark: one subject with one version."""

    version = 1
    id = SCHEMA_ID
    parsed: ClassVar[Any] = SCHEMA
    schema = json.dumps(SCHEMA)

    def versions_of_subject(self, subject: str) -> "list[Contract]":
        return [self] if subject.endswith("-value") else []

    def latest(self, subject: str) -> "Contract":
        return self


class TwoVersions(Contract):
    """The same with a second version."""

    version = 2
    id = NEWER
    parsed: ClassVar[Any] = {**SCHEMA, "fields": [*SCHEMA["fields"], _STATION]}  # type: ignore[misc]
    schema = json.dumps(parsed)

    def versions_of_subject(self, subject: str) -> "list[Contract]":
        return [Contract(), self] if subject.endswith("-value") else []


@contextmanager
def broker(data_dir: Path) -> Iterator[str]:
    """A broker of its own process; yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "log_broker", "--data-dir", str(data_dir), "--port", "0", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip()
    finally:
        process.terminate()
        process.wait()


class Source:
    """Writes events of random keys, the same ones for the same seed; of `versions` of the schema in turn."""

    def __init__(self, bootstrap_servers: str, keys: int, *, seed: int = 7, versions: int = 1) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._keys = keys
        self._versions = versions
        self._dice = np.random.default_rng(seed)
        self._sequence = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "batch.num.messages": 50_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "log_level": 0,
            }
        )
        topic = NewTopic(TOPIC, PARTITIONS, 1, config={"fluvial.durability": "memory"})
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.create_topics([topic])[TOPIC].result(30)

    def write_all_keys(self) -> None:
        """One event a key."""
        self._write(range(self._keys))

    def write(self, count: int) -> None:
        """`count` events of keys drawn evenly."""
        self._write(self._dice.integers(0, self._keys, count).tolist())

    def _write(self, keys: Iterator[int] | range | list[int]) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for count, key in enumerate(keys):
            name = b"sensor-%09d" % key
            self._sequence += 1
            while True:
                try:
                    produce(TOPIC, value=encoded(name, self._sequence, self._versions), key=name)
                    break
                except BufferError:
                    poll(0.05)
            if count % 10_000 == 0:
                poll(0)
        left = self._producer.flush(300)
        if left:
            raise RuntimeError(f"{left} events were not taken by the broker")


_FRAMES = [b"\0" + schema_id.to_bytes(4, "big") for schema_id in (SCHEMA_ID, NEWER)]
_DOUBLES = struct.Struct("<dd")
_FLOAT = struct.Struct("<f")


def encoded(name: bytes, sequence: int, versions: int = 1) -> bytes:
    """One framed record in Avro's binary form, by hand because the generic writer would take most of the time."""
    version = sequence % versions
    dice = random.Random(sequence)
    remark = b"\0" if sequence % 3 else b"\x02" + _text(b"checked %d" % (sequence % 1000))
    return b"".join(
        (
            _FRAMES[version],
            _text(name),
            _number(sequence % len(KINDS)),
            _number(sequence),
            _DOUBLES.pack(dice.random() * 60 - 20, 90_000 + dice.random() * 20_000),
            _number(sequence % 101),
            _FLOAT.pack((sequence % 64) / 64),
            remark,
            b"\1" if sequence % 2 else b"\0",
            _number(1_700_000_000_000 + sequence),
            b"\x02" + _text(b"mast %d" % (sequence % 50)) if version else b"",
        )
    )


def _text(text: bytes) -> bytes:
    return _number(len(text)) + text


def _number(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
