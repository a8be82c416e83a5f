"""
A topic that a test fills, its contract, and the registry of one test.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fastavro
from confluent_kafka import Producer

from fluvial.registry.client import RegistryClient


class Schemas(RegistryClient):
    """The registry as the tests use it, which have their schemas at hand as Python values too."""

    def register(self, subject: str, schema: Mapping[str, Any] | str) -> int:
        return super().register(subject, schema if isinstance(schema, str) else json.dumps(schema))


@dataclass(frozen=True, kw_only=True)
class Sent:
    """
    One record as it went into the log: a value, a tombstone (no value), or bytes that are no value (`raw`).

    `timestamp_ms` of 0 is the time of its sending. With `binary` that is its key.
    """

    key: str | None
    binary: bytes | None = None
    value: Mapping[str, Any] | None = None
    partition: int = 0
    schema_id: int | None = None
    raw: bytes | None = None
    timestamp_ms: int = 0

    @property
    def decodes(self) -> bool:
        return self.raw is None


@dataclass
class Topic:
    """A topic of one test, and what was sent to it in the order of each partition's log."""

    name: str
    bootstrap_servers: str
    schemas: Schemas
    partitions: int
    sent: dict[int, list[Sent]] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return f"{self.name}-value"

    def send(self, records: Sequence[Sent]) -> None:
        """Append the records and wait until all are in the log."""
        errors: list[Any] = []
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "acks": "all", "linger.ms": 5, "log_level": 0}
        )
        for record in records:
            producer.produce(
                self.name,
                key=record.key if record.binary is None else record.binary,
                value=self._bytes(record),
                partition=record.partition,
                timestamp=record.timestamp_ms,
                on_delivery=lambda error, _message: errors.append(error) if error else None,
            )
            self.sent.setdefault(record.partition, []).append(record)
        assert producer.flush(30) == 0
        assert not errors, errors

    def in_order(self) -> list[tuple[int, int, Sent]]:
        """Partition, offset and record of all that was sent, in the order that folds are applied in."""
        return [
            (partition, offset, record)
            for partition, records in sorted(self.sent.items())
            for offset, record in enumerate(records)
        ]

    def _bytes(self, record: Sent) -> bytes | None:
        if record.raw is not None or record.value is None:
            return record.raw
        if record.schema_id is None:
            latest = self.schemas.latest(self.subject)
            return framed(latest.id, json.loads(latest.schema), record.value)
        return framed(record.schema_id, json.loads(self.schemas.schema_by_id(record.schema_id)), record.value)


def framed(identity: int, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    """A value in Confluent's framing."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(schema)), dict(value))
    return b"\0" + identity.to_bytes(4, "big") + body.getvalue()
