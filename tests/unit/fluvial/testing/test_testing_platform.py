"""Broker and registry in this process, for the tests of a project."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from fluvial.registry.client import RegistryClient
from fluvial.registry.contracts import ContractError
from fluvial.registry.errors import RegistryError
from fluvial.testing import EmbeddedPlatform, embedded_platform, events
from fluvial.testing.embedded import SendError, _encoder

SCHEMAS = Path(__file__).parents[4] / "schemas"


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedPlatform]:
    with embedded_platform() as platform:
        platform.register(SCHEMAS, partitions=2)
        yield platform


def values(platform: EmbeddedPlatform, topic: str, count: int) -> list[tuple[str | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": platform.bootstrap_servers,
            "group.id": f"of-{topic}",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found = []
    for _ in range(300):
        found += [(each.key() and each.key().decode(), each.value()) for each in consumer.consume(count, 0.1)]
        if len(found) >= count:
            break
    consumer.close()
    return found


def test_contracts_are_registered_and_their_topics_made(running: EmbeddedPlatform) -> None:
    with RegistryClient(running.registry_url) as registry:
        assert "flight_events-value" in registry.subjects()
    assert {"flight_events", "weather", "planes"} <= running.broker.node.cluster.topics.keys()
    assert [contract.subject for contract in running.register(SCHEMAS)] == sorted(
        ["airlines-value", "airports-value", "flight_events-value", "planes-value", "weather-value"]
    )


def test_events_are_in_the_log_with_their_keys(running: EmbeddedPlatform) -> None:
    sent = events(SCHEMAS / "airline_operations" / "airlines.avsc", 2)
    running.send("airlines", sent, key="carrier")
    running.send_tombstones("airlines", "carrier-0")
    found = values(running, "airlines", 3)
    assert sorted(key or "" for key, _ in found) == ["carrier-0", "carrier-0", "carrier-1"]
    with RegistryClient(running.registry_url) as registry:
        prefix = b"\0" + registry.latest("airlines-value").id.to_bytes(4, "big")
    assert all(value.startswith(prefix) for _, value in found if value is not None)
    assert [value for _, value in found].count(None) == 1


def test_the_broker_holds_records_against_the_registry(running: EmbeddedPlatform) -> None:
    topic = running.broker.create_topic("checked", config={"fluvial.value.schema.validation": "id"})
    with RegistryClient(running.registry_url) as registry:
        registry.register("checked-value", json.dumps({"type": "record", "name": "A", "fields": []}))
    running.send(topic, [{}])
    with pytest.raises(SendError, match="1 records for checked were not written"):
        running._write(topic, [(None, b"no schema")])


@pytest.mark.parametrize(
    ("topic", "event", "says"),
    [
        ("airlines", {"carrier": 1, "name": "A"}, "event 1 does not fit schema .*carrier is <1>"),
        ("airlines", {"carrier": "AA"}, "event 1 does not fit schema .*name"),
        ("airlines", {"carrier": "AA", "name": "A", "more": 1}, "event 1 does not fit schema .*more"),
    ],
)
def test_an_event_that_does_not_fit_is_named(
    running: EmbeddedPlatform, topic: str, event: dict[str, object], says: str
) -> None:
    good = {"carrier": "AA", "name": "American"}
    with pytest.raises(SendError, match=says):
        running.send(topic, [good, event])


@pytest.mark.parametrize("text", ['{"type": "object"}', 'syntax = "proto3";'])
def test_a_schema_of_another_format_is_told(text: str) -> None:
    with pytest.raises(SendError, match=r"schema 7 is no Avro schema .*with a serializer of its format"):
        _encoder(7, text)


def test_a_key_that_is_no_field_is_named(running: EmbeddedPlatform) -> None:
    with pytest.raises(SendError, match="no field carier for its key; it has carrier, name"):
        running.send("airlines", [{"carrier": "AA", "name": "American"}], key="carier")


def test_a_topic_without_a_schema_is_told(running: EmbeddedPlatform) -> None:
    with pytest.raises(RegistryError, match="nothing-value"):
        running.send("nothing", [{}])


def test_contracts_that_are_not_there_are_told(running: EmbeddedPlatform, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no such folder"):
        running.register(tmp_path / "none")


def test_two_platforms_know_nothing_of_each_other(running: EmbeddedPlatform) -> None:
    with embedded_platform() as other, RegistryClient(other.registry_url) as registry:
        assert registry.subjects() == []
        assert other.bootstrap_servers != running.bootstrap_servers


def test_the_package_imports_neither_spark_nor_the_broker() -> None:
    script = (
        "import sys, fluvial.testing, fluvial.pytest_plugin\n"
        "heavy = ('pyspark', 'log_broker.server', 'dagster', 'confluent_kafka')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_broker_refuses_a_record_without_the_key_that_its_contract_names(running: EmbeddedPlatform) -> None:
    topic = running.broker.create_topic("keyed", config={"fluvial.value.schema.validation": "payload"})
    schema = {"type": "record", "name": "A", "fluvial.key": "id", "fields": [{"name": "id", "type": "string"}]}
    with RegistryClient(running.registry_url) as registry:
        registry.register("keyed-value", json.dumps(schema))
    running.send(topic, [{"id": "a"}], key="id")
    with pytest.raises(SendError, match="1 records for keyed were not written"):
        running.send(topic, [{"id": "b"}])
    assert [key for key, _ in values(running, topic, 1)] == ["a"]
