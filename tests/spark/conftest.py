"""
One Spark session, one broker, and topics and contracts that a test makes for itself.

FLUVIAL_TEST_BOOTSTRAP_SERVERS names another cluster of the Kafka protocol to run these tests against.
"""

import io
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fluvial.config import Settings


@pytest.fixture(scope="session")
def bootstrap_servers() -> Iterator[str]:
    """The address of a cluster that lives as long as the tests do."""
    given = os.environ.get("FLUVIAL_TEST_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    import log_broker

    with log_broker.embedded() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def base_settings(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of the session; each test puts its own warehouse in."""
    return Settings(
        bootstrap_servers=bootstrap_servers,
        warehouse=str(tmp_path_factory.mktemp("warehouse")),
        spark_master="local[2]",
        spark_conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )


@pytest.fixture(scope="session")
def spark(base_settings: Settings) -> Iterator[Any]:
    """The one session of the tests."""
    from fluvial.spark.session import build_session

    session = build_session(base_settings, "fluvial tests")
    yield session
    session.stop()


@pytest.fixture
def settings(base_settings: Settings, tmp_path: Path, spark: Any) -> Settings:
    """Settings with an empty warehouse, whose names are then the only ones known."""
    from fluvial.spark.session import register_tables

    own = replace(base_settings, warehouse=str(tmp_path / "warehouse"))
    register_tables(spark, own)
    return own


@dataclass
class Schemas:
    """A registry of one test: subjects and their versions, ids counted up."""

    versions: dict[str, dict[int, str]] = field(default_factory=dict)
    next_id: int = 1

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        identity = self.next_id
        self.next_id += 1
        self.versions.setdefault(subject, {})[identity] = json.dumps(schema)
        return identity

    def ids_of_subject(self, subject: str) -> dict[int, str]:
        return dict(self.versions.get(subject, {}))

    def latest(self, subject: str) -> tuple[int, str]:
        return max(self.versions[subject].items())


@pytest.fixture
def schemas() -> Schemas:
    return Schemas()


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One record as it went into the log; `value` is None for a tombstone, and `good` False for what cannot decode."""

    key: str | None
    value: Mapping[str, Any] | None = None
    partition: int = 0
    schema_id: int | None = None
    raw: bytes | None = None

    @property
    def good(self) -> bool:
        return self.raw is None


@dataclass
class Topic:
    """A topic of one test, and what was sent to it in the order of each partition's log."""

    name: str
    bootstrap_servers: str
    schemas: Schemas
    partitions: int
    sent: dict[int, list[Sent]] = field(default_factory=dict)

    def send(self, records: Sequence[Sent]) -> None:
        """Append the records and wait until all are in the log."""
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "acks": "all", "linger.ms": 5})
        for record in records:
            producer.produce(
                self.name,
                key=record.key,
                value=self._bytes(record),
                partition=record.partition,
                on_delivery=lambda error, _message: errors.append(error) if error else None,
            )
            self.sent.setdefault(record.partition, []).append(record)
        assert producer.flush(30) == 0
        assert not errors, errors

    def _bytes(self, record: Sent) -> bytes | None:
        if record.raw is not None or record.value is None:
            return record.raw
        versions = self.schemas.versions[f"{self.name}-value"]
        identity = record.schema_id or max(versions)
        return framed(identity, json.loads(versions[identity]), record.value)


def framed(identity: int, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    """A value in Confluent's framing."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(schema)), dict(value))
    return b"\0" + identity.to_bytes(4, "big") + body.getvalue()


@pytest.fixture
def admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers})


MakeTopic = Callable[..., Topic]


@pytest.fixture
def make_topic(bootstrap_servers: str, admin: AdminClient, schemas: Schemas) -> Iterator[MakeTopic]:
    """A factory of topics with a first version of their contract; they are deleted after the test."""
    made: list[str] = []

    def make(
        schema: Mapping[str, Any] | None = None, *, partitions: int = 1, name: str | None = None, **config: str
    ) -> Topic:
        name = name or f"t_{uuid.uuid4().hex[:12]}"
        wanted = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        admin.create_topics([wanted])[name].result(30)
        made.append(name)
        if schema is not None:
            schemas.register(f"{name}-value", schema)
        return Topic(name=name, bootstrap_servers=bootstrap_servers, schemas=schemas, partitions=partitions)

    yield make
    for future in admin.delete_topics(sorted(set(made))).values() if made else ():
        future.exception(30)
