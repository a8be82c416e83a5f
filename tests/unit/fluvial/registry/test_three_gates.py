"""A producer that ships a breaking change is stopped by its own check, by the registry and by the broker."""

import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from test_registry_on_the_broker import NodeProcess

from fluvial.cli.main import execute
from fluvial.registry.contracts import load_contracts, register_all
from fluvial.registry.errors import RegistryError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.errors import InvalidRecordError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOPIC = "gated_orders"
SUBJECT = f"{TOPIC}-value"
PASSWORD = "what the shop alone knows"
OLD: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
NEW: dict[str, Any] = {**OLD, "fields": [*OLD["fields"], {"name": "customer", "type": "string"}]}
OWNER = f"""
producer = "shop"
contact = "Shop <shop@example.org>"
subjects = ["{SUBJECT}"]
topics = ["{TOPIC}"]
credentials = "file:password"
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "node")
    yield node
    node.close()


@pytest.fixture
def producer(node: NodeProcess) -> Iterator[KafkaProducer]:
    """A client that shows what the broker says of a record, as librdkafka does not."""
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{node.port}", enable_idempotence=False)
    yield producer
    producer.close()


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    folder = tmp_path / "schemas" / "shop"
    folder.mkdir(parents=True)
    (folder / "owner.toml").write_text(OWNER)
    (folder / "password").write_text(PASSWORD)
    (folder / f"{TOPIC}.avsc").write_text(json.dumps(OLD))
    return tmp_path / "schemas"


def framed(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


def test_a_breaking_change_is_stopped_three_times(
    node: NodeProcess,
    producer: KafkaProducer,
    schemas: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(schemas.parent)
    [registered] = register_all(node.client, load_contracts(schemas))
    servers = {"bootstrap.servers": f"127.0.0.1:{node.port}", "log_level": 0}
    topic = NewTopic(TOPIC, num_partitions=1, config={"fluvial.value.schema.validation": "payload"})
    admin = AdminClient(servers)
    admin.create_topics([topic])[TOPIC].result(30)
    (schemas / "shop" / f"{TOPIC}.avsc").write_text(json.dumps(NEW))

    # The producer's CI.
    check = ["schema", "check", str(schemas), "--registry-url", node.client.url]
    assert execute(check) == 1
    told = capsys.readouterr()
    assert told.out.startswith(f"{SUBJECT}: incompatible\n")
    assert "The field 'customer' at path '/fields/1' in the new schema has no default value" in told.out
    assert f"{TOPIC}.avsc ({SUBJECT}): not to be shipped like this" in told.err

    # The registry: the owner's serializer registers what it writes with, and nobody else can lower the level.
    signed = {"url": node.client.url, "basic.auth.user.info": f"shop:{PASSWORD}"}
    context = SerializationContext(TOPIC, MessageField.VALUE)
    with SchemaRegistryClient(signed) as client:
        serialize = AvroSerializer(client, json.dumps(NEW))
        with pytest.raises(SchemaRegistryError) as refused:
            serialize({"id": "a", "customer": "b"}, context)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert "The field 'customer'" in refused.value.error_message
    with pytest.raises(RegistryError, match=r"is owned by shop \(Shop <shop@example.org>\)"):
        node.client.set_config("NONE", SUBJECT)

    # The broker: under the registered id the bytes do not fit, and an id from elsewhere is not this topic's.
    elsewhere = node.client.register("scratch-value", json.dumps(NEW))
    for schema_id, reason in (
        (registered.id, f"the value does not decode under schema id {registered.id}"),
        (elsewhere, f"schema id {elsewhere} of the value is registered under scratch-value, not under {SUBJECT}"),
    ):
        with pytest.raises(InvalidRecordError, match=reason):
            producer.send(TOPIC, value=framed(schema_id, NEW, {"id": "a", "customer": "b"})).get(60)

    # Repaired, it passes all three.
    repaired = {**OLD, "fields": [*OLD["fields"], {**NEW["fields"][1], "default": ""}]}
    (schemas / "shop" / f"{TOPIC}.avsc").write_text(json.dumps(repaired))
    assert execute(check) == 0
    [registered] = register_all(node.client, load_contracts(schemas))
    value = framed(registered.id, repaired, {"id": "a", "customer": "b"})
    assert producer.send(TOPIC, value=value).get(60).offset == 0
