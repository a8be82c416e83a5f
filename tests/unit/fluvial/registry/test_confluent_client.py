"""Confluent's own Python client and Avro serializer against our registry."""

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

USER = """{"type": "record", "name": "User", "namespace": "demo", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}"""
USER_WITH_AGE = USER.replace("]}", ', {"name": "age", "type": ["null", "int"], "default": null}]}')
USER_WITHOUT_DEFAULT = USER.replace("]}", ', {"name": "age", "type": "int"}]}')


@pytest.fixture
def client(registry_server):
    with SchemaRegistryClient({"url": registry_server.url}) as client:
        yield client


def test_registers_and_reads_back(client) -> None:
    schema_id = client.register_schema("users-value", Schema(USER, "AVRO"))
    assert schema_id == 1
    assert client.get_subjects() == ["users-value"]
    latest = client.get_latest_version("users-value")
    assert (latest.schema_id, latest.version, latest.subject) == (1, 1, "users-value")
    assert latest.schema.schema_str == (
        '{"type":"record","name":"User","namespace":"demo",'
        '"fields":[{"name":"id","type":"long"},{"name":"name","type":"string"}]}'
    )
    assert client.get_schema(1).schema_str == latest.schema.schema_str
    assert client.get_versions("users-value") == [1]
    assert client.lookup_schema("users-value", Schema(USER, "AVRO")).version == 1


def test_evolution(client) -> None:
    client.register_schema("users-value", Schema(USER, "AVRO"))
    assert client.test_compatibility("users-value", Schema(USER_WITH_AGE, "AVRO")) is True
    assert client.test_compatibility("users-value", Schema(USER_WITHOUT_DEFAULT, "AVRO")) is False
    assert client.register_schema("users-value", Schema(USER_WITH_AGE, "AVRO")) == 2
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("users-value", Schema(USER_WITHOUT_DEFAULT, "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert client.set_compatibility("users-value", "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility("users-value") == "NONE"
    assert client.register_schema("users-value", Schema(USER_WITHOUT_DEFAULT, "AVRO")) == 3


def test_deletion(client) -> None:
    client.register_schema("users-value", Schema(USER, "AVRO"))
    assert client.delete_subject("users-value") == [1]
    assert client.get_subjects() == []
    assert client.delete_subject("users-value", permanent=True) == [1]
    client.clear_caches()
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_schema(1)
    assert refused.value.error_code == 40403


def test_modes(client) -> None:
    assert client.get_global_mode() == "READWRITE"
    assert client.update_global_mode("READONLY") == "READONLY"
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("users-value", Schema(USER, "AVRO"))
    assert refused.value.error_code == 42205
    client.update_mode("users-value", "READWRITE")
    assert client.get_mode("users-value") == "READWRITE"
    assert client.delete_mode("users-value") == "READWRITE"


def test_subject_with_a_slash_and_blanks(client) -> None:
    client.register_schema("team/users value?", Schema('"string"', "AVRO"))
    assert client.get_latest_version("team/users value?").schema.schema_str == '"string"'
    assert client.get_subjects() == ["team/users value?"]


def test_references(client) -> None:
    client.register_schema("user", Schema(USER, "AVRO"))
    order = '{"type":"record","name":"Order","fields":[{"name":"by","type":"demo.User"}]}'
    schema = Schema(order, "AVRO", [SchemaReference("demo.User", "user", 1)])
    schema_id = client.register_schema("order", schema)
    found = client.get_schema(schema_id)
    assert found.schema_str == order
    assert [(each.name, each.subject, each.version) for each in found.references] == [("demo.User", "user", 1)]
    assert client.get_referenced_by("user", 1) == [schema_id]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("user")
    assert refused.value.error_code == 42206


@pytest.mark.parametrize("auto_register", [True, False])
def test_avro_serializer_round_trip(client, auto_register) -> None:
    if not auto_register:
        client.register_schema("users-value", Schema(USER, "AVRO"))
    serialize = AvroSerializer(client, USER, conf={"auto.register.schemas": auto_register})
    context = SerializationContext("users", MessageField.VALUE)
    payload = serialize({"id": 7, "name": "Ada"}, context)
    assert payload[:5] == b"\0\0\0\0\1"
    reader = AvroDeserializer(client, USER_WITH_AGE)
    assert reader(payload, context) == {"id": 7, "name": "Ada", "age": None}
    assert AvroDeserializer(client)(payload, context) == {"id": 7, "name": "Ada"}


def test_use_latest_version(client) -> None:
    client.register_schema("users-value", Schema(USER_WITH_AGE, "AVRO"))
    conf = {"auto.register.schemas": False, "use.latest.version": True}
    serialize = AvroSerializer(client, conf=conf)
    context = SerializationContext("users", MessageField.VALUE)
    payload = serialize({"id": 1, "name": "Bo", "age": 3}, context)
    assert AvroDeserializer(client)(payload, context) == {"id": 1, "name": "Bo", "age": 3}
