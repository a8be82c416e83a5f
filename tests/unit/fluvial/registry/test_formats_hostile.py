"""JSON Schemas and .proto files made to hurt: a clear refusal or an answer, in bounded work, and nothing is fetched."""

import base64
import json
import socket

import pytest
from google.protobuf import descriptor_pb2

from fluvial.registry.formats.json_schema import compatibility as json_compatibility
from fluvial.registry.formats.json_schema.parse import parse as parse_json
from fluvial.registry.formats.protobuf import compatibility as protobuf_compatibility
from fluvial.registry.formats.protobuf.parse import parse as parse_proto
from fluvial.registry.formats.schema_kind import SchemaSyntaxError, TooComplexError

HEAD = 'syntax = "proto3"; '


def nested(opening: str, middle: str, closing: str, levels: int) -> str:
    return opening * levels + middle + closing * levels


@pytest.mark.parametrize(
    "schema",
    [
        nested('{"items":', "{}", "}", 101),
        nested('{"items":', "{}", "}", 50_000),
        nested('{"allOf":[', "{}", "]}", 10_000),
        '{"default":' + nested("[", "1", "]", 100_000) + "}",
        '{"enum":[' + nested("[", "1", "]", 900) + "]}",
        '{"maximum":' + "9" * 10_000 + "}",
        json.dumps({"anyOf": [{}] * 100_001}),
        json.dumps({"definitions": {f"d{n}": {"$ref": f"#/definitions/d{(n + 1) % 5_000}"} for n in range(5_000)}}),
    ],
    ids=lambda schema: schema[:30],
)
def test_json_that_is_too_deep_or_too_much_is_refused(schema) -> None:
    with pytest.raises(SchemaSyntaxError) as refused:
        parse_json(schema)
    assert len(str(refused.value)) < 1_000


def test_a_long_chain_of_references_is_followed_once() -> None:
    chain = {f"d{n}": {"$ref": f"#/definitions/d{n + 1}"} for n in range(20_000)} | {"d20000": {"type": "string"}}
    parsed = parse_json(json.dumps({"$ref": "#/definitions/d0", "definitions": chain}))
    assert parsed.schema.resolved().words == {"type": "string"}


def test_nothing_is_fetched(monkeypatch) -> None:
    def refuse(*arguments, **options):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for reference in ("http://localhost:1/x", "https://example.org/x.json#/a", "file:///etc/hosts", "//host/x"):
        with pytest.raises(SchemaSyntaxError, match="nothing is fetched"):
            parse_json(json.dumps({"properties": {"a": {"$ref": reference}}}))
    with pytest.raises(SchemaSyntaxError, match="is not known here"):
        parse_proto(HEAD + 'import "/etc/hosts";')


BOMB = "^(a+)+$"


def test_a_pattern_that_takes_for_ever_is_not_tried() -> None:
    name = "a" * 60 + "!"
    old = {"type": "object", "properties": {name: {"type": "string"}}, "additionalProperties": False}
    new = {"type": "object", "patternProperties": {BOMB: {"type": "string"}}, "additionalProperties": False}
    found = json_compatibility.differences(parse_json(json.dumps(new)).schema, parse_json(json.dumps(old)).schema)
    assert [each.fault for each in found] == ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]
    text = {"type": "string", "pattern": BOMB}
    assert (
        json_compatibility.differences(parse_json(json.dumps(text)).schema, parse_json(json.dumps(text)).schema) == []
    )


def choices(count: int, word: str) -> str:
    """Alternatives of alternatives: each pair of them has to be looked at."""
    inner = [{"type": "object", "properties": {f"p{n}": {"minimum": n}}, "required": [f"p{n}"]} for n in range(count)]
    return json.dumps({word: [{"anyOf": [*inner, {"maxLength": n}]} for n in range(count)]})


@pytest.mark.parametrize("word", ["oneOf", "anyOf", "allOf"])
def test_choices_of_choices_are_given_up_in_time(word) -> None:
    old, new = parse_json(choices(40, word)).schema, parse_json(choices(41, word)).schema
    with pytest.raises(TooComplexError, match="steps to compare"):
        json_compatibility.differences(new, old)


def test_schemas_that_contain_one_another_are_compared() -> None:
    names = [f"n{index}" for index in range(30)]
    everyone = {"anyOf": [{"$ref": f"#/definitions/{name}"} for name in names]}
    members = {
        name: {"type": "object", "properties": {"kind": {"const": name}, "inner": everyone}, "required": ["kind"]}
        for name in names
    }
    old = parse_json(json.dumps({**everyone, "definitions": members})).schema
    members["n7"]["required"].append("inner")
    new = parse_json(json.dumps({**everyone, "definitions": members})).schema
    assert json_compatibility.differences(old, old) == []
    assert json_compatibility.differences(new, old) != []


@pytest.mark.parametrize(
    "text",
    [
        HEAD + nested("message A {", "", "}", 33),
        HEAD + nested("message A {", "", "}", 20_000),
        HEAD + "message A { option (x) = " + nested("{ a: ", "1", "}", 100_000),
        HEAD + "/* never ends",
        HEAD + 'message A { string a = 1 [json_name = "' + "\\x" * 100,
        HEAD + "message A { int32 a = " + "9" * 100_000 + "; }",
        HEAD + "message A { int32 a = 08; }",
        HEAD + "".join(f'import "{n}.proto";' for n in range(30_000)),
        ";" * 300_001,
        HEAD + "message A { \ud800 a = 1; }",
        "A" * 1_000_000,
    ],
    ids=lambda text: text[:50],
)
def test_proto_text_that_is_too_deep_or_too_much_is_refused(text) -> None:
    with pytest.raises(SchemaSyntaxError) as refused:
        parse_proto(text)
    assert len(str(refused.value)) < 1_000


def test_files_that_import_one_another_are_refused() -> None:
    references = {"a.proto": HEAD + 'import "b.proto";', "b.proto": HEAD + 'import "a.proto";'}
    with pytest.raises(SchemaSyntaxError, match="imports itself"):
        parse_proto(HEAD + 'import "a.proto";', references=references)
    chain = {f"{n}.proto": HEAD + f'import public "{n + 1}.proto";' for n in range(500)} | {"500.proto": HEAD}
    with pytest.raises(SchemaSyntaxError, match="one within the other"):
        parse_proto(HEAD + 'import "0.proto";', references=chain)


def test_messages_that_contain_themselves_are_compared() -> None:
    old = parse_proto(
        HEAD + "message A { B b = 1; A a = 2; map<string, A> m = 3; } message B { A a = 1; int32 x = 2; }"
    )
    new = parse_proto(
        HEAD + "message A { B b = 1; A a = 2; map<string, A> m = 3; } message B { A a = 1; string x = 2; }"
    )
    assert protobuf_compatibility.differences(old.schema, old.schema) == []
    found = {(each.fault, each.path) for each in protobuf_compatibility.differences(new.schema, old.schema)}
    assert ("FIELD_SCALAR_KIND_CHANGED", ("B", "2")) in found


def test_many_fields_and_oneofs_are_read_in_time_that_grows_with_them() -> None:
    fields = "".join(
        f"oneof o{n} {{ int32 a{n} = {2 * n + 1}; }} map<int32, A> m{n} = {2 * n + 2};" for n in range(2_000)
    )
    parsed = parse_proto(f"{HEAD} message A {{ {fields} }}")
    assert protobuf_compatibility.differences(parsed.schema, parsed.schema) == []
    assert parsed.text.count("map<int32, A>") == 2_000


def crooked(change) -> str:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto2")
    message = file.message_type.add(name="A")
    change(file, message)
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda file, message: message.field.add(name="a", number=1, label=1, type=10, type_name=".A"),
        lambda file, message: message.field.add(name="a", number=1, label=1, type=11, type_name=".B"),
        lambda file, message: message.field.add(name="a", number=1, label=1, type=5, oneof_index=7),
        lambda file, message: message.field.add(name="a", number=2**30, label=1, type=5),
        lambda file, message: message.field.add(name="a b", number=1, label=1, type=5),
        lambda file, message: message.nested_type.add(name="MEntry").options.MergeFrom(
            descriptor_pb2.MessageOptions(map_entry=True)
        ),
        lambda file, message: setattr(file, "package", "a..b"),
        lambda file, message: setattr(file, "syntax", "editions"),
        lambda file, message: file.dependency.append("schema.proto"),
    ],
)
def test_descriptors_that_no_protoc_makes_are_refused(change) -> None:
    with pytest.raises(SchemaSyntaxError):
        parse_proto(crooked(change))
