"""
The same tables and commands on an Apache Kafka that asks who is there, and what is said to those it does not let in.

FLUVIAL_TEST_KAFKA=1 asks for it: a Kafka and a registry beside it are started once for the module.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluvial.cli.main import execute
from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.spark.kafka import Span, TopicError, read_span, topic_bounds
from fluvial.tables import history
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from tests.free_ports import free_ports
from tests.peers.kafka_jars import lacking
from tests.peers.secured_kafka import PASSWORD, SCRAM_PASSWORD, Authority, SecuredKafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "FLUVIAL_TEST_KAFKA" not in os.environ or lacking() is not None,
        reason=lacking() or "starts a Kafka, which takes ten seconds and a gigabyte: FLUVIAL_TEST_KAFKA=1",
    ),
]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "amount", "type": "int"}],
}
ORDERS = 40
Command = Callable[..., str]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


def properties_file(path: Path, properties: Mapping[str, str]) -> Path:
    """A properties file as Java writes one."""
    path.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in properties.items()), encoding="utf-8")
    return path


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


@pytest.fixture(scope="module")
def registry_url(kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry whose topic is on the secured cluster."""
    folder = tmp_path_factory.mktemp("registry")
    file = properties_file(folder / "client.properties", kafka.scram)
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "fluvial.cli.main",
        "schema",
        "serve",
        "--port",
        str(port),
        "--command-config",
        str(file),
    ]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "are served at" in line, line
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def fluvial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in a folder of its own; returns what it said and answered, none of it a password."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, status: int = 0) -> str:
        got = execute(words)
        said = "".join(capfd.readouterr())
        assert got == status, said
        assert PASSWORD not in said
        assert SCRAM_PASSWORD not in said
        return said

    return run


@pytest.mark.parametrize("way", ["plain", "scram", "mutual"])
def test_commands_and_tables_work_as_elsewhere(
    kafka: SecuredKafka,
    registry_url: str,
    spark: Any,
    warehouse_settings: Settings,
    fluvial: Command,
    tmp_path: Path,
    way: str,
) -> None:
    topic = f"orders-{way}-{uuid.uuid4().hex[:8]}"
    file = properties_file(tmp_path / "client.properties", getattr(kafka, way))
    cluster, both = ("--command-config", str(file)), ("--command-config", str(file), "--registry-url", registry_url)
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    records = [{"customer": f"c{number % 7}", "amount": number} for number in range(ORDERS)]
    (tmp_path / "orders.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))

    fluvial("topic", "create", topic, "--partitions", "2", *cluster)
    fluvial("schema", "register", "order.avsc", "--subject", f"{topic}-value", "--registry-url", registry_url)
    written = ("--file", "orders.jsonl", "--subject", f"{topic}-value", "--key-field", "customer")
    fluvial("topic", "produce", topic, *written, *both)
    told = fluvial("topic", "consume", topic, "--from-beginning", "--to-end", *both)
    assert sorted((json.loads(line) for line in told.splitlines()), key=lambda each: each["amount"]) == records
    assert "1 brokers" in fluvial("cluster", "status", *cluster) or topic in fluvial("topic", "list", *cluster)

    found = load_settings(environ={}, directory=tmp_path, command_config=file, registry_url=registry_url)
    settings = replace(found, warehouse=warehouse_settings.warehouse, spark_master="local[2]")
    declared = history(topic)
    assert materialize(declared, settings, spark).rows == ORDERS
    with settings.registry.client() as schemas:
        assert verify(declared, settings, spark, schemas=schemas).is_exact
    fluvial("topic", "produce", topic, *written, *both)
    group = json.loads(fluvial("group", "describe", f"fluvial.{declared.table}", "--format", "json", *cluster))
    assert sum(each["lag"] for each in group["partitions"]) == ORDERS
    assert materialize(declared, settings, spark).rows == ORDERS

    bounds = topic_bounds(settings.cluster, topic)
    ranges = {partition: (bounds.starts[partition], end) for partition, end in bounds.ends.items()}
    frame = read_span(spark, settings.cluster, Span(topic=topic, ranges=ranges))
    assert_unseen(kafka, str(frame._jdf.queryExecution().toString()))
    for path in Path(settings.warehouse).rglob("*.json"):
        assert_unseen(kafka, path.read_text())


def assert_unseen(kafka: SecuredKafka, text: str) -> None:
    """No secret is in a text, however it is written."""
    key = kafka.client.key.read_text().splitlines()[1]
    for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1], SCRAM_PASSWORD, key):
        assert secret not in text


def without(properties: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not name.startswith(prefixes)}


def stranger(kafka: SecuredKafka) -> Authority:
    return Authority(kafka.folder / "elsewhere", "stranger")


REFUSALS: dict[str, tuple[Callable[[SecuredKafka], dict[str, str]], str]] = {
    "a wrong password (PLAIN)": (
        lambda kafka: {**kafka.plain, "sasl.password": "guess"},
        "rejects the credentials: check sasl.username, sasl.password",
    ),
    "a wrong password (SCRAM)": (
        lambda kafka: {**kafka.scram, "sasl.password": "guess"},
        "rejects the credentials: check sasl.username, sasl.password",
    ),
    "a mechanism that is not offered": (
        lambda kafka: {**kafka.scram, "sasl.mechanism": "SCRAM-SHA-256"},
        "SCRAM-SHA-512",
    ),
    "another authority": (
        lambda kafka: {**kafka.scram, "ssl.ca.location": str(stranger(kafka).certificate)},
        "not trusted, or is for another host: name the PEM file of its CA in ssl.ca.location",
    ),
    "plain text to a port of TLS": (
        lambda kafka: {"bootstrap.servers": kafka.sasl},
        "set security.protocol to SSL or SASL_SSL",
    ),
    "TLS to a port of plain text": (
        lambda kafka: {**kafka.mutual, "bootstrap.servers": kafka.address},
        "speaks no TLS on this port",
    ),
    "no certificate": (
        lambda kafka: without(kafka.mutual, "ssl.certificate", "ssl.key"),
        "check ssl.certificate.location and ssl.key.location",
    ),
    "a certificate of another authority": (
        lambda kafka: {
            **kafka.mutual,
            "ssl.certificate.location": str((pair := stranger(kafka).issue("somebody")).certificate),
            "ssl.key.location": str(pair.key),
        },
        "check ssl.certificate.location and ssl.key.location",
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", REFUSALS)
def test_who_is_not_let_in_is_told_why(kafka: SecuredKafka, fluvial: Command, tmp_path: Path, case: str) -> None:
    make, says = REFUSALS[case]
    properties = make(kafka)
    file = properties_file(tmp_path / "client.properties", properties)
    said = fluvial("topic", "list", "--command-config", str(file), status=1)
    assert says in said
    assert said.count("\n") == 1
    servers = properties.pop("bootstrap.servers")
    with pytest.raises(TopicError) as failed:
        topic_bounds(KafkaCluster.with_properties(servers, **properties), "orders")
    assert says in str(failed.value)
    fluvial("cluster", "status", "--command-config", str(file), status=1)
    assert isinstance(failed.value, FluvialError)
