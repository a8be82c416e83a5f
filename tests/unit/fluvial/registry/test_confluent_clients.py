"""Confluent's Python clients of today, the one that blocks and the one that awaits, with all their usual options."""

import asyncio
from io import BytesIO
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer, AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

USER = '{"type":"record","name":"User","namespace":"demo","fields":[{"name":"id","type":"long"}]}'
USER_2 = USER.replace("]}", ',{"name":"age","type":["null","int"],"default":null}]}')
UNORDERED = """{"namespace": "demo", "name": "User", "doc": "", "type": "record",
    "fields": [{"type": {"type": "long"}, "name": "id"}]}"""
VALUE = SerializationContext("users", MessageField.VALUE)
SUBJECT = "users-value"


def owned(by: str) -> Metadata:
    return Metadata(tags=None, properties=MetadataProperties({"owner": by}), sensitive=None)


def rules(expr: str) -> RuleSet:
    rule = Rule("positive", None, RuleKind.CONDITION, RuleMode.WRITE, "CEL", None, None, expr, None, None, False)
    return RuleSet(migration_rules=None, domain_rules=[rule])


@pytest.fixture
def client(registry_server):
    with SchemaRegistryClient({"url": registry_server.url}) as client:
        yield client


def test_what_registering_answers_is_what_is_found(client) -> None:
    answered = client.register_schema_full_response(SUBJECT, Schema(USER, "AVRO"))
    assert (answered.schema_id, answered.version) == (1, 1)
    client.clear_caches()
    for found in (
        client.get_latest_version(SUBJECT),
        client.get_version(SUBJECT, 1),
        client.lookup_schema(SUBJECT, Schema(USER, "AVRO")),
    ):
        assert (found.schema_id, found.version, found.subject, found.guid) == (1, 1, SUBJECT, answered.guid)
    assert client.get_schema_by_guid(answered.guid).schema_str == USER


def test_metadata_and_rules_make_a_version_of_their_own(client) -> None:
    client.register_schema(SUBJECT, Schema(USER, "AVRO"))
    with_owner = Schema(USER, "AVRO", metadata=owned("ops"))
    assert client.register_schema(SUBJECT, with_owner) == 2
    with_rules = Schema(USER, "AVRO", metadata=owned("ops"), rule_set=rules("message.id > 0"))
    assert client.register_schema(SUBJECT, with_rules) == 3
    client.clear_caches()
    assert client.get_versions(SUBJECT) == [1, 2, 3]
    found = client.get_latest_with_metadata(SUBJECT, {"owner": "ops"})
    assert (found.version, found.schema.rule_set.domain_rules[0].expr) == (3, "message.id > 0")
    assert client.lookup_schema(SUBJECT, with_owner).version == 2
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_latest_with_metadata(SUBJECT, {"owner": "others"})
    assert refused.value.error_code == 40403


def test_rules_that_no_client_could_run_are_refused(client) -> None:
    twice = RuleSet(migration_rules=None, domain_rules=rules("a").domain_rules * 2)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(SUBJECT, Schema(USER, "AVRO", rule_set=twice))
    assert (refused.value.http_status_code, refused.value.error_code) == (422, 42210)


def test_settings_come_back_as_they_were_set(client) -> None:
    wanted = ServerConfig(
        compatibility=ConfigCompatibilityLevel.FULL,
        compatibility_group="application.major.version",
        default_metadata=owned("nobody"),
        override_rule_set=rules("true"),
    )
    client.set_config(SUBJECT, wanted)
    found = client.get_config(SUBJECT)
    assert found.compatibility_level == ConfigCompatibilityLevel.FULL
    assert found.compatibility_group == "application.major.version"
    assert found.default_metadata.properties == owned("nobody").properties
    assert found.override_rule_set.domain_rules[0].expr == "true"
    client.register_schema(SUBJECT, Schema(USER, "AVRO"))
    registered = client.get_latest_version(SUBJECT).schema
    assert registered.metadata.properties == owned("nobody").properties
    assert registered.rule_set.domain_rules[0].expr == "true"
    assert client.delete_config(SUBJECT).compatibility_level == ConfigCompatibilityLevel.FULL
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_config(SUBJECT)
    assert refused.value.error_code == 40408


def test_a_compatibility_group_breaks_with_the_versions_of_others(client) -> None:
    client.set_config(
        SUBJECT, ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD, compatibility_group="major")
    )
    one, two = (Metadata(None, MetadataProperties({"major": number}), None) for number in "12")
    client.register_schema(SUBJECT, Schema(USER, "AVRO", metadata=one))
    broken = USER.replace('"long"', '"string"')
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(SUBJECT, Schema(broken, "AVRO", metadata=one))
    assert refused.value.error_code == 409
    assert client.register_schema(SUBJECT, Schema(broken, "AVRO", metadata=two)) == 2


def test_an_alias_stands_for_its_subject(registry_server, client) -> None:
    client.register_schema(SUBJECT, Schema(USER, "AVRO"))
    assert registry_server.http.put("/config/users-old", json={"alias": SUBJECT}).json() == {"alias": SUBJECT}
    assert client.get_latest_version("users-old").subject == SUBJECT
    assert client.get_subjects() == [SUBJECT]


@pytest.mark.parametrize("strategy", [topic_subject_name_strategy, lambda context, name: f"{context.topic}-own"])
@pytest.mark.parametrize(
    ("conf", "schema"),
    [
        ({"auto.register.schemas": True}, USER),
        ({"auto.register.schemas": True, "normalize.schemas": True}, UNORDERED),
        ({"auto.register.schemas": False}, USER),
        ({"auto.register.schemas": False, "use.latest.version": True}, None),
        ({"auto.register.schemas": False, "use.latest.with.metadata": {"owner": "ops"}}, None),
        ({"auto.register.schemas": False, "use.schema.id": 1}, USER),
    ],
    ids=str,
)
def test_a_serializer_with_its_options(client, conf: dict[str, Any], schema: str | None, strategy: Any) -> None:
    subject = strategy(VALUE, "demo.User")
    client.register_schema(subject, Schema(USER, "AVRO", metadata=owned("ops")), normalize_schemas=True)
    client.clear_caches()
    serialize = AvroSerializer(client, schema, conf={**conf, "subject.name.strategy": strategy})
    payload = serialize({"id": 7}, VALUE)
    assert AvroDeserializer(client, conf={"subject.name.strategy": strategy})(payload, VALUE) == {"id": 7}
    assert client.get_versions(subject) == [1]


def test_a_serializer_with_references(client) -> None:
    order = '{"type":"record","name":"Order","fields":[{"name":"by","type":"demo.User"}]}'
    client.register_schema("user", Schema(USER, "AVRO"))
    schema = Schema(order, "AVRO", [SchemaReference("demo.User", "user", 1)])
    serialize = AvroSerializer(client, schema)
    payload = serialize({"by": {"id": 1}}, SerializationContext("orders", MessageField.VALUE))
    client.clear_caches()
    assert AvroDeserializer(client)(payload, VALUE) == {"by": {"id": 1}}


def test_a_schema_id_in_the_headers(client) -> None:
    context = SerializationContext("users", MessageField.VALUE, [])
    serialize = AvroSerializer(client, USER, conf={"schema.id.serializer": header_schema_id_serializer})
    payload = serialize({"id": 7}, context)
    assert payload == b"\x0e"
    (name, value), *_ = context.headers
    schema_id = SchemaId("AVRO")
    schema_id.from_bytes(BytesIO(value))
    assert (name, str(schema_id.guid)) == ("__value_schema_id", client.get_latest_version(SUBJECT).guid)


def test_a_client_of_one_context(registry_server, client) -> None:
    client.register_schema(SUBJECT, Schema('"string"', "AVRO"))
    with SchemaRegistryClient({"url": f"{registry_server.url}/contexts/.east"}) as east:
        payload = AvroSerializer(east, USER)({"id": 1}, VALUE)
        east.clear_caches()
        assert AvroDeserializer(east)(payload, VALUE) == {"id": 1}
        assert east.get_subjects() == [f":.east:{SUBJECT}"]
    assert client.get_contexts() == [".", ".east"]


async def test_many_async_clients_at_once(registry_server) -> None:
    async def one(number: int) -> list[int]:
        async with AsyncSchemaRegistryClient({"url": registry_server.url}) as client:
            ids = [await client.register_schema(f"s{number}", Schema(each, "AVRO")) for each in (USER, USER_2)]
            serialize = await AsyncAvroSerializer(client, USER_2)
            assert (await serialize({"id": 1, "age": None}, VALUE))[4] == ids[1]
            return ids

    found = await asyncio.gather(*(one(number) for number in range(8)))
    assert all(ids == found[0] for ids in found)
    assert sorted(found[0]) == [1, 2]
