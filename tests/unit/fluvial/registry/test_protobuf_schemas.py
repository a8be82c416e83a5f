"""Protobuf schemas as the registry keeps them: text and descriptor as one, imports, compatibility; protoc judges."""

import base64
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc

from fluvial.registry.errors import RefusedError
from fluvial.registry.formats.protobuf.kind import ProtobufKind
from fluvial.registry.formats.protobuf.parse import parse
from fluvial.registry.formats.protobuf.source import json_name
from fluvial.registry.formats.schema_kind import SchemaSyntaxError
from fluvial.registry.model.commands import Draft, Register
from fluvial.registry.model.records import Reference

INCLUDED = Path(grpc_tools.__file__).parent / "_proto"

PROTO2 = r"""
// A comment, and /* one in it */
syntax = "proto2";
package demo.v1;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/any.proto";
option java_package = "org.example";
option deprecated = false;
message Sensor {
  reserved 4, 9 to 11, 1000 to max;
  reserved "old", 'older';
  required int64 id = 1;
  optional string name = 2 [default = "a\"b\n\303\251", deprecated = true];
  optional bytes raw = 3 [default = "\001\xff"];
  optional double scale = 5 [default = -1.5];
  optional float limit = 6 [default = inf];
  optional Kind kind = 7 [default = WIND, json_name = "type"];
  repeated sint32 samples = 8 [packed = true];
  optional google.protobuf.Timestamp at = 12;
  optional group Place = 13 { required double latitude = 1; };
  map<string, Sensor.Inner> parts = 14;
  oneof source { string station_id = 15; Inner inner = 16; }
  message Inner { optional .demo.v1.Sensor outer = 1; extensions 100 to 199, 300; }
  enum Kind { option allow_alias = true; NONE = 0; WIND = 1; GUST = 1; BELOW = -2; reserved 5 to max; }
  extend Inner { optional uint32 more = 100; }
}
extend Sensor.Inner { repeated string notes = 101; }
service Readings {
  rpc Get (Sensor) returns (stream Sensor.Inner) { option deprecated = true; }
  rpc Put (stream .demo.v1.Sensor) returns (Sensor);
}
"""
PROTO3 = """
syntax = "proto3";
package demo;
message User {
  string name = 1;
  optional int32 age = 2;
  repeated Role roles = 3;
  map<int32, bool> flags = 4;
  oneof contact { string mail = 5; Phone phone = 6; }
  message Phone { fixed64 number = 1; }
  optional Phone second = 7;
}
enum Role { ROLE_UNKNOWN = 0; ADMIN = 0x10; }
"""


@pytest.fixture
def http(registry_server):
    return registry_server.http


def by_protoc(folder: Path, files: dict[str, str], name: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor that protoc makes of a file."""
    for each, text in files.items():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_text(text)
    out = folder / "descriptors"
    arguments = ["protoc", f"-I{folder}", f"-I{INCLUDED}", f"--descriptor_set_out={out}", name]
    assert protoc.main(arguments) == 0
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def without_plain_json_names(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """protoc writes the name in JSON of each field down; other makers of descriptors only those that were given."""
    found = descriptor_pb2.FileDescriptorProto()
    found.CopyFrom(file)
    found.name = ""
    waiting = list(found.message_type)
    fields = list(found.extension)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        fields += [*message.field, *message.extension]
    for each in fields:
        if each.json_name == json_name(each.name):
            each.ClearField("json_name")
    return found


def base64_of(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def included_files() -> list[str]:
    left_out = {"descriptor.proto"}  # protoc leaves out of its own descriptor what it says for itself alone
    folder = INCLUDED / "google" / "protobuf"
    return sorted(f"google/protobuf/{each.name}" for each in folder.glob("*.proto") if each.name not in left_out)


@pytest.mark.parametrize("text", [PROTO2, PROTO3], ids=["proto2", "proto3"])
def test_text_comes_to_the_descriptor_that_protoc_makes(tmp_path, text) -> None:
    theirs = by_protoc(tmp_path, {"x.proto": text}, "x.proto")
    ours = parse(text)
    assert without_plain_json_names(ours.schema.file) == without_plain_json_names(theirs)
    assert parse(ours.text).text == ours.text
    assert parse(base64_of(theirs)).text == ours.text
    again = by_protoc(tmp_path, {"y.proto": ours.text}, "y.proto")
    assert parse(base64_of(again)).text == ours.text


@pytest.mark.parametrize("name", included_files())
def test_googles_own_files_come_to_the_descriptors_that_protoc_makes(tmp_path, name) -> None:
    text = (INCLUDED / name).read_text()
    theirs = by_protoc(tmp_path, {}, name)
    references = {each: (INCLUDED / each).read_text() for each in theirs.dependency}
    ours = parse(text, references=references)
    assert without_plain_json_names(ours.schema.file) == without_plain_json_names(theirs)
    assert parse(base64_of(theirs), references=references).text == ours.text


def test_the_stored_text() -> None:
    assert parse(PROTO3).text == (
        'syntax = "proto3";\n'
        "package demo;\n"
        "\n"
        "message User {\n"
        "  string name = 1;\n"
        "  optional int32 age = 2;\n"
        "  repeated Role roles = 3;\n"
        "  map<int32, bool> flags = 4;\n"
        "  optional Phone second = 7;\n"
        "\n"
        "  oneof contact {\n"
        "    string mail = 5;\n"
        "    Phone phone = 6;\n"
        "  }\n"
        "\n"
        "  message Phone {\n"
        "    fixed64 number = 1;\n"
        "  }\n"
        "}\n"
        "enum Role {\n"
        "  ROLE_UNKNOWN = 0;\n"
        "  ADMIN = 16;\n"
        "}\n"
    )


def test_registered_as_text_and_as_descriptor_it_is_one_schema(http, tmp_path) -> None:
    descriptor = base64_of(by_protoc(tmp_path, {"user.proto": PROTO3}, "user.proto"))
    first = http.post("/subjects/users-value/versions", json={"schema": PROTO3, "schemaType": "PROTOBUF"}).json()
    second = http.post("/subjects/users-value/versions", json={"schema": descriptor, "schemaType": "PROTOBUF"}).json()
    assert first == second == {"id": 1}
    stored = http.get("/schemas/ids/1").json()
    assert stored == {"schemaType": "PROTOBUF", "schema": parse(PROTO3).text}
    served = http.get("/schemas/ids/1?format=serialized").json()["schema"]
    assert parse(served).text == stored["schema"]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(base64.b64decode(served))
    assert pool.FindMessageTypeByName("demo.User").fields_by_name["phone"].message_type.full_name == "demo.User.Phone"
    assert http.get("/schemas/types").json() == ["JSON", "PROTOBUF", "AVRO"]


def test_normalize_passes_over_the_order_of_fields() -> None:
    turned = 'syntax = "proto3"; message A { string b = 2; int32 a = 1; }'
    plain = 'syntax = "proto3"; message A { int32 a = 1; string b = 2; }'
    assert parse(turned).text != parse(plain).text
    assert parse(turned, normalize=True).text == parse(plain, normalize=True).text


def test_imports_are_references(http) -> None:
    def post(subject: str, schema: str, *references: str):
        listed = [{"name": each, "subject": each, "version": 1} for each in references]
        body = {"schema": schema, "schemaType": "PROTOBUF", "references": listed}
        return http.post(f"/subjects/{subject}/versions", json=body)

    post("base.proto", 'syntax = "proto3"; package base; message Id { int64 id = 1; }')
    post("middle.proto", 'syntax = "proto3"; import public "base.proto"; message M { base.Id id = 1; }', "base.proto")
    top = 'syntax = "proto3"; import "middle.proto"; message T { M m = 1; base.Id id = 2; }'
    assert post("top-value", top, "middle.proto").status_code == 200
    answer = post("other-value", top)
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)
    assert 'register that file and name it "middle.proto" in `references`' in answer.json()["message"]


@pytest.mark.parametrize(
    "text", ["{", "message", 'syntax = "proto4";', "bm90IGEgZGVzY3JpcHRvcg==", "\0", "message A {}}"]
)
def test_what_is_no_schema_is_refused(text) -> None:
    with pytest.raises(SchemaSyntaxError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('edition = "2023";', "editions are not kept here"),
        ('syntax = "proto3";\nmessage A {\n  Unknown a = 1;\n}', "A.a is of type Unknown, which neither this file"),
        ('syntax = "proto3";\nmessage A {\n  int32 a 1;\n}', "line 3: expected `=`, found `1`"),
        ('syntax = "proto3"; message A { required int32 a = 1; }', "proto3 has no required fields"),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "duplicate field number"),
        ('syntax = "proto3"; message A { int32 a = 0; }', "field a: its number is 0"),
        ('syntax = "proto3"; message A {} message A {}', "A is defined twice"),
        ('syntax = "proto3"; enum A { B = 1; }', "must be zero"),
        ('syntax = "proto2"; message A { int32 a = 1; }', "proto2 wants a label"),
        ('syntax = "proto3"; import "a.proto";', 'the import "a.proto" is not known here'),
        ('syntax = "proto3"; message A { int32 a = 1 [pakced = true]; }', "`pakced` is not an option of protobuf here"),
    ],
)
def test_a_refusal_says_where_and_what_to_do(text, words) -> None:
    with pytest.raises(SchemaSyntaxError) as refused:
        parse(text)
    assert words in str(refused.value)


def test_custom_options_are_kept_and_are_the_same_from_a_descriptor() -> None:
    from confluent_kafka.schema_registry.confluent import meta_pb2

    text = (
        'syntax = "proto3"; import "confluent/meta.proto";'
        'message M { string s = 1 [(confluent.field_meta) = { doc: "x" tags: "PII" }]; }'
    )
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3", dependency=["confluent/meta.proto"])
    field = file.message_type.add(name="M").field.add(name="s", number=1, type=9, label=1)
    field.options.Extensions[meta_pb2.field_meta].doc = "x"
    field.options.Extensions[meta_pb2.field_meta].tags.append("PII")
    assert parse(text).text == parse(base64_of(file)).text
    assert '(confluent.field_meta) = { doc : "x" tags : "PII" }' in parse(text).text


def faults(old: str, new: str, *, references=None) -> list[str]:
    """The kinds and places of what keeps a reader under `new` from reading what was written under `old`."""
    head = 'syntax = "proto3"; package p; '
    sides = [each if each.startswith("syntax") else head + each for each in (old, new)]
    writer, reader = (parse(each, references=references) for each in sides)
    found = ProtobufKind().faults(reader=reader, writer=writer, reader_word="new", writer_word="old")
    return [f"{each.split(chr(34))[1]} {each.split(chr(39))[1]}" for each in found]


PROTO2_A = 'syntax = "proto2"; package p; message A {{ {} }}'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("message A { int32 a = 1; }", "message A { int32 a = 1; string b = 2; }", []),
        ("message A { int32 a = 1; string b = 2; }", "message A { int32 a = 1; }", []),
        ("message A { int32 a = 1; }", "message A { int32 renamed = 1; }", []),
        ("message A { int32 a = 1; }", "message A { int64 a = 1; }", []),
        ("message A { string a = 1; }", "message A { bytes a = 1; }", []),
        ("message A { int32 a = 1; }", "message A { E a = 1; } enum E { X = 0; }", []),
        ("message A { int32 a = 1; }", "message A { sint32 a = 1; }", ["FIELD_SCALAR_KIND_CHANGED #/A/1"]),
        ("message A { int32 a = 1; }", "message A { string a = 1; }", ["FIELD_SCALAR_KIND_CHANGED #/A/1"]),
        ("message A { int32 a = 1; }", "message A { B a = 1; } message B {}", ["FIELD_KIND_CHANGED #/A/1"]),
        ("message A { repeated int32 a = 1; }", "message A { int32 a = 1; }", ["FIELD_NUMERIC_LABEL_CHANGED #/A/1"]),
        ("message A {} message B {}", "message A {}", ["MESSAGE_REMOVED #/B"]),
        ("message A {} message B {}", "message B {} message A {}", []),
        ("message A { message B {} }", "message A {}", ["MESSAGE_REMOVED #/A/B"]),
        ("enum E { X = 0; Y = 1; }", "enum E { X = 0; Z = 2; }", []),
        ("message A { B b = 1; } message B {} message C {}", "message A { C b = 1; } message B {} message C {}",
         ["FIELD_NAMED_TYPE_CHANGED #/A/1"]),
        ("message A { map<string, int32> m = 1; }", "message A { map<string, int64> m = 1; }", []),
        ("message A { map<string, int32> m = 1; }", "message A { map<string, string> m = 1; }",
         ["FIELD_SCALAR_KIND_CHANGED #/A/1"]),
        ("message A { oneof o { int32 a = 1; int32 b = 2; } }", "message A { oneof o { int32 a = 1; } }",
         ["ONEOF_FIELD_REMOVED #/A/o/2"]),
        ("message A { oneof o { int32 a = 1; } }", "message A { oneof o { int32 a = 1; int32 b = 2; } }", []),
        ("message A { oneof o { int32 a = 1; } }", "message A { int32 c = 3; }", []),
        ("message A { int32 a = 1; int32 b = 2; }", "message A { oneof o { int32 a = 1; int32 b = 2; } }",
         ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/A/o"]),
        ("message A { int32 a = 1; oneof o { int32 b = 2; } }", "message A { oneof o { int32 a = 1; int32 b = 2; } }",
         ["FIELD_MOVED_TO_EXISTING_ONEOF #/A/o"]),
        ("message A { int32 a = 1; }", "message A { oneof o { int32 a = 1; int32 b = 2; } }", []),
        (PROTO2_A.format(""), PROTO2_A.format("required int32 a = 1;"), ["REQUIRED_FIELD_ADDED #/A/1"]),
        (PROTO2_A.format("required int32 a = 1;"), PROTO2_A.format(""), ["REQUIRED_FIELD_REMOVED #/A/1"]),
        (PROTO2_A.format("optional int32 a = 1;"), PROTO2_A.format("required int32 a = 1;"),
         ["REQUIRED_FIELD_ADDED #/A/1"]),
        ('syntax = "proto3"; package a;', 'syntax = "proto3"; package b;', ["PACKAGE_CHANGED #/"]),
        ("message A { A a = 1; int32 b = 2; }", "message A { A a = 1; string b = 2; }",
         ["FIELD_SCALAR_KIND_CHANGED #/A/2"]),
    ],
)  # fmt: skip
def test_what_may_follow_what(old, new, expected) -> None:
    assert faults(old, new) == expected


def test_messages_of_imports_are_compared_where_they_are_used(http) -> None:
    first, second = (f'syntax = "proto3"; message R {{ {kind} x = 1; }}' for kind in ("int32", "string"))
    for each in (first, second):
        http.post("/subjects/r/versions", json={"schema": each, "schemaType": "PROTOBUF"})
        http.put("/config/r", json={"compatibility": "NONE"})
    top = 'syntax = "proto3"; import "r.proto"; message T { R r = 1; }'

    def body(version: int):
        reference = {"name": "r.proto", "subject": "r", "version": version}
        return {"schema": top, "schemaType": "PROTOBUF", "references": [reference]}

    http.post("/subjects/t/versions", json=body(1))
    check = http.post("/compatibility/subjects/t/versions/latest?verbose=true", json=body(2)).json()
    assert check["messages"][:3] == [
        '{errorType:"FIELD_SCALAR_KIND_CHANGED", description:"The kind of a SCALAR field at path \'#/R/1\' in the new '
        'schema does not match its kind in the old schema"}',
        '{errorType:"FIELD_NAMED_TYPE_CHANGED", description:"The type of a MESSAGE field at path \'#/T/1\' in the new '
        'schema does not match its type in the old schema"}',
        "{oldSchemaVersion: 1}",
    ]


def test_a_registry_that_sees_only_avro_imports_no_other_kind() -> None:
    code = (
        "import sys; from fluvial.registry.formats.kinds import KINDS; import fluvial.registry.service.app;"
        "KINDS['AVRO'].parse('\"string\"', references={}, normalize=False);"
        "print([each for each in sys.modules if each.split('.')[0] in {'google', 'jsonschema', 'referencing'}"
        " or each.startswith(tuple(f'fluvial.registry.formats.{kind}.parse' for kind in ('json_schema', 'protobuf')))])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


async def test_types_of_files_that_imported_files_import_are_compared(registry) -> None:
    """`Trip` is seen by who imports its file, and `Place`, which it holds, by nobody but that file."""
    place = Reference(name="Place.proto", subject="place", version=1)
    trip = Reference(name="Trip.proto", subject="trip", version=1)
    user = 'syntax = "proto3"; package a2; import "Trip.proto"; message User { a1.Trip trip = 1; %s }'
    for subject, text, references in (
        ("place", 'syntax = "proto3"; package a1; message Place { string name = 1; }', ()),
        ("trip", 'syntax = "proto3"; package a1; import "Place.proto"; message Trip { Place to = 1; }', (place,)),
        ("user", user % "", (trip,)),
        ("user", user % "int32 more = 2;", (trip,)),
    ):
        draft = Draft(schema=text, schema_type="PROTOBUF", references=references)
        await registry.apply(Register(subject=subject, draft=draft), action="register")
    assert [each.version for each in registry.state.versions("user")] == [1, 2]
    other = Draft(schema='syntax = "proto3"; package a1; message Place { int32 name = 1; }', schema_type="PROTOBUF")
    await registry.apply(Register(subject="place-2", draft=other), action="register")
    moved = replace(place, subject="place-2")
    draft = Draft(
        schema='syntax = "proto3"; package a1; import "Place.proto"; message Trip { Place to = 1; }',
        schema_type="PROTOBUF",
        references=(moved,),
    )
    await registry.apply(Register(subject="trip-2", draft=draft), action="register")
    draft = Draft(schema=user % "", schema_type="PROTOBUF", references=(replace(trip, subject="trip-2"),))
    with pytest.raises(RefusedError, match="FIELD_SCALAR_KIND_CHANGED"):
        await registry.apply(Register(subject="user", draft=draft), action="register")
