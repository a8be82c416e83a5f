"""Confluent's JSON and Protobuf serializers against our registry, with message classes made at run time."""

import json

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass

from fluvial.registry.formats.protobuf.source import file_of

VALUE = SerializationContext("orders", MessageField.VALUE)
ADDRESS = """
syntax = "proto3";
package shop;
message Address { string street = 1; Country country = 2; }
enum Country { NOWHERE = 0; FRANCE = 33; }
"""
ORDER = """
syntax = "proto3";
package shop;
import "shop/address.proto";
import "google/protobuf/timestamp.proto";
message Ignored { int32 x = 1; }
message Order {
  message Line { string article = 1; optional int32 count = 2; }
  int64 id = 1;
  Address to = 2;
  repeated Line lines = 3;
  map<string, double> discounts = 4;
  google.protobuf.Timestamp at = 5;
  oneof payment { string card = 6; bool cash = 7; }
}
"""


@pytest.fixture
def client(registry_server):
    with SchemaRegistryClient({"url": registry_server.url}) as client:
        yield client


def message_classes(**texts: str):
    """The classes of all messages of some .proto files; each file may import those before it."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    classes = {}
    for stem, text in texts.items():
        file: descriptor_pb2.FileDescriptorProto = file_of(text)
        file.name = f"shop/{stem}.proto"
        pool.Add(file)
        for name, message in pool.FindFileByName(file.name).message_types_by_name.items():
            classes[name] = GetMessageClass(message)
    return classes


def an_order(classes):
    order = classes["Order"](id=7, to={"street": "Rue de Rivoli", "country": 33}, discounts={"new": 0.1}, card="4711")
    order.lines.add(article="Chapeau", count=0)
    order.at.FromSeconds(1_700_000_000)
    return order


@pytest.mark.parametrize("normalize", [False, True])
def test_protobuf_with_an_import_registered_by_itself(client, normalize) -> None:
    classes = message_classes(address=ADDRESS, order=ORDER)
    serialize = ProtobufSerializer(classes["Order"], client, {"normalize.schemas": normalize})
    payload = serialize(an_order(classes), VALUE)
    assert sorted(client.get_subjects()) == ["orders-value", "shop/address.proto"]
    with SchemaRegistryClient(client.config()) as other:  # this one keeps what it reads, and reads text
        latest = other.get_latest_version("orders-value")
    assert payload[:5] == b"\0" + latest.schema_id.to_bytes(4, "big")
    assert [(each.name, each.subject, each.version) for each in latest.schema.references] == [
        ("shop/address.proto", "shop/address.proto", 1)
    ]
    assert ProtobufDeserializer(classes["Order"], schema_registry_client=client)(payload, VALUE) == an_order(classes)
    # Said again by a producer that knows nothing of the first, it is the same schema.
    with SchemaRegistryClient(client.config()) as other:
        again = ProtobufSerializer(classes["Order"], other, {"normalize.schemas": normalize})
        assert again(an_order(classes), VALUE) == payload
    assert client.get_versions("orders-value") == [1]


def test_protobuf_registered_as_text_is_found_by_the_serializer(client) -> None:
    client.register_schema("shop/address.proto", Schema(ADDRESS, "PROTOBUF"))
    reference = SchemaReference("shop/address.proto", "shop/address.proto", 1)
    schema_id = client.register_schema("orders-value", Schema(ORDER, "PROTOBUF", [reference]))
    classes = message_classes(address=ADDRESS, order=ORDER)
    serialize = ProtobufSerializer(classes["Order"], client, {"auto.register.schemas": False})
    payload = serialize(an_order(classes), VALUE)
    assert payload[:5] == b"\0" + schema_id.to_bytes(4, "big")
    latest = ProtobufSerializer(classes["Order"], client, {"auto.register.schemas": False, "use.latest.version": True})
    assert latest(an_order(classes), VALUE) == payload


def test_protobuf_evolves_and_a_break_is_refused(client) -> None:
    first = message_classes(event='syntax = "proto3"; message Event { int64 id = 1; string note = 2; }')["Event"]
    wider = message_classes(event='syntax = "proto3"; message Event { int64 id = 1; bytes note = 2; bool x = 3; }')[
        "Event"
    ]
    broken = message_classes(event='syntax = "proto3"; message Event { string id = 1; }')["Event"]
    old = ProtobufSerializer(first, client)(first(id=5, note="n"), VALUE)
    new = ProtobufSerializer(wider, client)(wider(id=6, x=True), VALUE)
    assert client.get_versions("orders-value") == [1, 2]
    with pytest.raises(SchemaRegistryError) as refused:
        ProtobufSerializer(broken, client)(broken(id="x"), VALUE)
    assert refused.value.error_code == 409
    assert "FIELD_SCALAR_KIND_CHANGED" in str(refused.value)
    read = ProtobufDeserializer(wider, schema_registry_client=client)
    assert (read(old, VALUE).id, read(old, VALUE).note) == (5, b"n")
    assert read(new, VALUE) == wider(id=6, x=True)


CUSTOMER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Customer",
    "type": "object",
    "properties": {"name": {"type": "string"}, "mail": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
PURCHASE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Purchase",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "by": {"$ref": "customer.json"}},
    "required": ["id", "by"],
    "additionalProperties": False,
}


def test_json_with_a_reference(client) -> None:
    client.register_schema("customer", Schema(json.dumps(CUSTOMER), "JSON"))
    schema = Schema(json.dumps(PURCHASE), "JSON", [SchemaReference("customer.json", "customer", 1)])
    serialize = JSONSerializer(schema, client)
    purchase = {"id": 1, "by": {"name": "Ada"}}
    payload = serialize(purchase, VALUE)
    assert payload[:5] == b"\0" + client.get_latest_version("orders-value").schema_id.to_bytes(4, "big")
    assert JSONDeserializer(schema, schema_registry_client=client)(payload, VALUE) == purchase
    assert JSONDeserializer(None, schema_registry_client=client)(payload, VALUE) == purchase
    with pytest.raises(Exception, match="is a required property"):
        serialize({"id": 1, "by": {}}, VALUE)


def test_json_evolves_and_a_break_is_refused(client) -> None:
    JSONSerializer(json.dumps(CUSTOMER), client)({"name": "Ada"}, VALUE)
    wider = CUSTOMER | {"properties": CUSTOMER["properties"] | {"age": {"type": "integer"}}}
    JSONSerializer(json.dumps(wider), client)({"name": "Ada", "age": 36}, VALUE)
    assert client.get_versions("orders-value") == [1, 2]
    broken = wider | {"required": ["name", "age"]}
    with pytest.raises(SchemaRegistryError) as refused:
        JSONSerializer(json.dumps(broken), client)({"name": "Ada", "age": 36}, VALUE)
    assert refused.value.error_code == 409
    assert client.test_compatibility("orders-value", Schema(json.dumps(broken), "JSON")) is False
    assert client.lookup_schema("orders-value", Schema(json.dumps(wider), "JSON")).version == 2
