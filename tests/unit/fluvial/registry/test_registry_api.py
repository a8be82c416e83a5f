"""The REST API as `curl` sees it: shapes, codes and messages of Confluent's registry."""

import json

import pytest

from fluvial.registry.model.compatibility import LEVELS

V1 = "application/vnd.schemaregistry.v1+json"
A = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
A_B = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":0}]}'
A_C = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"c","type":"string"}]}'


@pytest.fixture
def http(registry_server):
    return registry_server.http


def register(http, subject: str, schema: str, **more: object) -> int:
    answer = http.post(f"/subjects/{subject}/versions", json={"schema": schema, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def refusal(answer) -> tuple[int, int, str]:
    assert answer.headers["content-type"] == V1
    content = answer.json()
    assert content.keys() == {"error_code", "message"}
    return answer.status_code, content["error_code"], content["message"]


def test_empty_registry(http) -> None:
    for path, expected in {
        "/": {},
        "/subjects": [],
        "/schemas": [],
        "/schemas/types": ["JSON", "PROTOBUF", "AVRO"],
        "/config": {"compatibilityLevel": "BACKWARD"},
        "/mode": {"mode": "READWRITE"},
        "/contexts": ["."],
    }.items():
        answer = http.get(path)
        assert (answer.status_code, answer.json()) == (200, expected)
        assert answer.headers["content-type"] == V1


def test_bodies_are_byte_for_byte(http) -> None:
    answer = http.post("/subjects/s/versions", json={"schema": '{"type": "string"}'})
    assert answer.content == b'{"id":1}'
    assert http.get("/schemas/ids/1").content == b'{"schema":"\\"string\\""}'
    assert http.get("/schemas/ids/1/schema").content == b'"string"'
    version = b'{"subject":"s","version":1,"id":1,"schema":"\\"string\\""}'
    assert http.get("/subjects/s/versions/1").content == version
    assert http.get("/subjects/s/versions/latest").content == version
    assert http.post("/subjects/s", json={"schema": '"string"'}).content == version
    assert http.get("/subjects/s/versions/1/schema").content == b'"string"'
    assert http.get("/subjects/s/versions").content == b"[1]"
    assert http.get("/schemas/ids/1/subjects").content == b'["s"]'
    assert http.get("/schemas/ids/1/versions").content == b'[{"subject":"s","version":1}]'
    assert http.get("/schemas").content == b"[" + version + b"]"


def test_head_answers_like_get_without_a_body(http) -> None:
    register(http, "s", A)
    answer = http.head("/subjects/s/versions/1")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0
    assert http.head("/subjects/t/versions/1").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/subjects/x/versions", (404, 40401, "Subject 'x' not found.")),
        ("GET", "/subjects/x/versions/1", (404, 40401, "Subject 'x' not found.")),
        ("GET", "/subjects/s/versions/9", (404, 40402, "Version 9 not found.")),
        ("GET", "/schemas/ids/99", (404, 40403, "Schema 99 not found")),
        ("GET", "/schemas/ids/99/schema", (404, 40403, "Schema 99 not found")),
        ("GET", "/schemas/ids/99/versions", (404, 40403, "Schema not found")),
        ("GET", "/schemas/ids/one", (404, 404, "HTTP 404 Not Found")),
        ("GET", "/nothing", (404, 404, "HTTP 404 Not Found")),
        ("PATCH", "/subjects", (405, 405, "HTTP 405 Method Not Allowed")),
        ("DELETE", "/subjects/x", (404, 40401, "Subject 'x' not found.")),
        ("DELETE", "/subjects/x/versions/1", (404, 40401, "Subject 'x' not found.")),
        ("DELETE", "/subjects/s/versions/9", (404, 40402, "Version 9 not found.")),
        (
            "DELETE",
            "/subjects/s?permanent=true",
            (404, 40405, "Subject 's' was not deleted first before being permanently deleted"),
        ),
        (
            "DELETE",
            "/subjects/s/versions/1?permanent=true",
            (404, 40407, "Subject 's' Version 1 was not deleted first before being permanently deleted"),
        ),
        (
            "GET",
            "/config/s",
            (404, 40408, "Subject 's' does not have subject-level compatibility configured"),
        ),
        ("GET", "/mode/s", (404, 40409, "Subject 's' does not have subject-level mode configured")),
        ("DELETE", "/config/s", (404, 40401, "Subject 's' not found.")),
        *(
            (
                "GET",
                f"/subjects/s/versions/{version}",
                (
                    422,
                    42202,
                    f"The specified version '{version}' is not a valid version id. "
                    'Allowed values are between [1, 2^31-1] and the string "latest"',
                ),
            )
            for version in ("0", "-2", "first", "2147483648", "1.0", "9999999999999999999999")
        ),
        ("GET", "/subjects/__GLOBAL/versions", (422, 42208, "The specified subject '__GLOBAL' is not a valid.")),
    ],
)
def test_refusals(shared_server, method, path, expected) -> None:
    http = shared_server.http
    register(http, "s", A)
    assert refusal(http.request(method, path)) == expected


def test_soft_and_hard_deletion(http) -> None:
    register(http, "s", A)
    register(http, "s", A_B)
    assert http.delete("/subjects/s/versions/1").json() == 1
    soft = "was soft deleted.Set permanent=true to delete permanently"
    assert refusal(http.delete("/subjects/s/versions/1")) == (404, 40406, f"Subject 's' Version 1 {soft}")
    assert http.get("/subjects/s/versions").json() == [2]
    assert http.get("/subjects/s/versions?deleted=true").json() == [1, 2]
    assert http.get("/subjects/s/versions?deletedOnly=true").json() == [1]
    assert http.get("/subjects/s/versions/1?deleted=true").json()["deleted"] is True
    assert http.get("/schemas/ids/1").status_code == 200
    assert http.delete("/subjects/s/versions/1?permanent=true").json() == 1
    assert refusal(http.get("/schemas/ids/1")) == (404, 40403, "Schema 1 not found")
    assert http.delete("/subjects/s").json() == [2]
    assert refusal(http.delete("/subjects/s")) == (404, 40404, f"Subject 's' {soft}")
    assert http.get("/subjects").json() == []
    assert http.get("/subjects?deleted=true").json() == ["s"]
    assert http.delete("/subjects/s?permanent=true").json() == [2]
    assert http.get("/subjects?deleted=true").json() == []
    assert register(http, "s", A) == 3


def test_latest_is_the_last_live_version(http) -> None:
    register(http, "s", A)
    register(http, "s", A_B)
    assert http.delete("/subjects/s/versions/latest").json() == 2
    assert http.get("/subjects/s/versions/latest").json()["version"] == 1
    assert http.get("/subjects/s/versions/-1").json()["version"] == 1


def test_an_incompatible_schema_is_refused_with_the_reasons(http) -> None:
    register(http, "s", A)
    answer = refusal(http.post("/subjects/s/versions", json={"schema": A_C}))
    assert answer == (
        409,
        409,
        'Schema being registered is incompatible with an earlier schema for subject "s", details: '
        "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'c' at path '/fields/1' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'c'}, {oldSchemaVersion: 1}, "
        f"{{oldSchema: '{A}'}}, {{validateFields: 'false', compatibility: 'BACKWARD'}}]",
    )
    assert http.get("/subjects/s/versions").json() == [1]


def test_compatibility_is_tested_without_registering(http) -> None:
    register(http, "s", A)
    path = "/compatibility/subjects/s/versions"
    assert http.post(path, json={"schema": A_B}).json() == {"is_compatible": True}
    assert http.post(f"{path}?verbose=true", json={"schema": A_B}).json() == {"is_compatible": True, "messages": []}
    for place in (f"{path}/latest", f"{path}/1", path):
        answer = http.post(f"{place}?verbose=true", json={"schema": A_C}).json()
        assert answer["is_compatible"] is False
        assert "'c' at path '/fields/1'" in answer["messages"][0]
    assert http.post(f"{path}/latest", json={"schema": A_C}).json() == {"is_compatible": False}
    assert refusal(http.post(f"{path}/7", json={"schema": A}))[:2] == (404, 40402)
    assert http.post("/compatibility/subjects/new/versions/latest", json={"schema": A}).json()["is_compatible"] is True
    assert refusal(http.post(path, json={"schema": "{"}))[:2] == (422, 42201)
    assert http.post(f"{path}?verbose=true", json={"schema": "{"}).json()["is_compatible"] is False


def avro(*fields: dict[str, object]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def strings(longest: int, **more: object) -> str:
    return json.dumps({"type": "string", "maxLength": longest, **more})


def protobuf(*fields: str) -> str:
    return 'syntax = "proto2"; message R { ' + " ".join(fields) + " }"


X = {"name": "x", "type": "int"}
X_OR_0 = X | {"default": 0}
Y = {"name": "y", "type": "int", "default": 1}


# Of each history the last schema is judged against those before; no two levels answer alike to all of one type.
@pytest.mark.parametrize(
    ("schema_type", "history", "accepted_by"),
    [
        ("AVRO", [avro(Y), avro(Y, X)], "NONE FORWARD FORWARD_TRANSITIVE"),
        ("AVRO", [avro(Y, X), avro(Y)], "NONE BACKWARD BACKWARD_TRANSITIVE"),
        ("AVRO", [avro(X), avro(X_OR_0), avro(Y)], "NONE BACKWARD BACKWARD_TRANSITIVE FORWARD FULL"),
        ("AVRO", [avro(Y), avro(Y, X_OR_0), avro(Y, X)], "NONE BACKWARD FORWARD FORWARD_TRANSITIVE FULL"),
        ("JSON", [strings(5), strings(4)], "NONE FORWARD FORWARD_TRANSITIVE"),
        ("JSON", [strings(5), strings(6)], "NONE BACKWARD BACKWARD_TRANSITIVE"),
        ("JSON", [strings(9), strings(5), strings(7)], "NONE BACKWARD"),
        ("JSON", [strings(5), strings(9), strings(7)], "NONE FORWARD"),
        ("JSON", [strings(5), strings(9), strings(9, title="t")], "NONE BACKWARD BACKWARD_TRANSITIVE FORWARD FULL"),
        ("PROTOBUF", [protobuf() + "message S {}", protobuf()], "NONE FORWARD FORWARD_TRANSITIVE"),
        ("PROTOBUF", [protobuf(), protobuf() + "message S {}"], "NONE BACKWARD BACKWARD_TRANSITIVE"),
        (
            "PROTOBUF",
            [protobuf("optional int32 x = 1;"), protobuf(), protobuf("optional string x = 1;")],
            "NONE BACKWARD FORWARD FULL",
        ),
    ],
)
def test_each_level_looks_in_its_direction_and_as_far_back_as_it_says(
    http, schema_type: str, history: list[str], accepted_by: str
) -> None:
    accepting = []
    for level in LEVELS:
        assert http.put(f"/config/{level}", json={"compatibility": "NONE"}).status_code == 200
        for schema in history[:-1]:
            body = {"schema": schema, "schemaType": schema_type}
            assert http.post(f"/subjects/{level}/versions", json=body).status_code == 200
        assert http.put(f"/config/{level}", json={"compatibility": level.lower()}).json() == {"compatibility": level}
        body = {"schema": history[-1], "schemaType": schema_type}
        check = http.post(f"/compatibility/subjects/{level}/versions", json=body).json()
        answer = http.post(f"/subjects/{level}/versions", json=body)
        assert answer.status_code == (200 if check["is_compatible"] else 409)
        if check["is_compatible"]:
            accepting.append(level)
    assert accepting == accepted_by.split()


def test_config(http) -> None:
    assert http.put("/config", json={"compatibility": "FULL"}).content == b'{"compatibility":"FULL"}'
    assert http.get("/config").content == b'{"compatibilityLevel":"FULL"}'
    assert http.get("/config/s?defaultToGlobal=true").json() == {"compatibilityLevel": "FULL"}
    assert http.put("/config/s", json={"compatibility": "NONE", "normalize": True}).json() == {
        "compatibility": "NONE",
        "normalize": True,
    }
    assert http.get("/config/s").json() == {"normalize": True, "compatibilityLevel": "NONE"}
    assert http.delete("/config/s").json()["compatibilityLevel"] == "NONE"
    assert http.delete("/config").json() == {"compatibilityLevel": "FULL"}
    assert http.get("/config").json() == {"compatibilityLevel": "BACKWARD"}
    for wrong in ({"compatibility": "SIDEWAYS"}, {"compatibility": 5}):
        assert refusal(http.put("/config", json=wrong)) == (
            422,
            42203,
            "Invalid compatibility level. Valid values are none, backward, forward, full, "
            "backward_transitive, forward_transitive, and full_transitive",
        )


def test_modes(http) -> None:
    register(http, "s", A)
    assert http.put("/mode/s", json={"mode": "READONLY"}).content == b'{"mode":"READONLY"}'
    for method, path, body in [
        ("POST", "/subjects/s/versions", {"schema": A_B}),
        ("DELETE", "/subjects/s", None),
        ("DELETE", "/subjects/s/versions/1", None),
        ("PUT", "/config/s", {"compatibility": "NONE"}),
    ]:
        assert refusal(http.request(method, path, json=body) if body else http.request(method, path))[:2] == (
            422,
            42205,
        )
    assert register(http, "t", A) == 1
    assert http.delete("/mode/s").json() == {"mode": "READONLY"}
    assert register(http, "s", A_B) == 2
    assert refusal(http.put("/mode", json={"mode": "SOMETIMES"}))[:2] == (422, 42204)
    assert refusal(http.put("/mode", json={}))[:2] == (422, 42204)


def test_import_keeps_ids_and_versions(http) -> None:
    body = {"schema": A, "id": 77, "version": 5}
    assert refusal(http.post("/subjects/s/versions", json=body))[:2] == (422, 42205)
    assert http.put("/mode/s", json={"mode": "IMPORT"}).status_code == 200
    assert http.post("/subjects/s/versions", json=body).json() == {"id": 77}
    assert http.get("/subjects/s/versions").json() == [5]
    assert refusal(http.post("/subjects/s/versions", json={"schema": A_C, "id": 77}))[:2] == (422, 42205)
    assert refusal(http.post("/subjects/s/versions", json={"schema": A_C}))[:2] == (422, 42205)
    assert http.put("/mode/s", json={"mode": "READWRITE"}).status_code == 200
    assert register(http, "s", A_B) == 78
    assert http.get("/subjects/s/versions").json() == [5, 6]
    assert refusal(http.put("/mode/s", json={"mode": "IMPORT"}))[:2] == (422, 42205)
    assert http.put("/mode/s?force=true", json={"mode": "IMPORT"}).status_code == 200


def test_metadata_and_rules_are_kept(http) -> None:
    metadata = {"properties": {"owner": "ops"}, "sensitive": ["x"]}
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}]}
    kept = {"domainRules": [{**rules["domainRules"][0], "disabled": False}]}
    body = {"schema": A, "metadata": metadata, "ruleSet": rules, "schemaTags": [], "somethingNewer": {"a": 1}}
    answer = http.post("/subjects/s/versions", json=body).json()
    assert answer == {"id": 1, "version": 1, "metadata": metadata, "ruleSet": kept, "schema": A}
    assert register(http, "s", A) == 1
    found = http.get("/subjects/s/versions/latest").json()
    assert (found["version"], found["metadata"], found["ruleSet"]) == (1, metadata, kept)
    assert register(http, "s", A_B) == 2
    assert http.get("/schemas/ids/2").json()["metadata"] == metadata
    assert http.post("/subjects/t/versions", json={"schema": A}).json() == {"id": 3}


def test_only_metadata_is_changed_by_an_empty_schema(http) -> None:
    assert refusal(http.post("/subjects/s/versions", json={}))[:2] == (422, 42201)
    register(http, "s", A)
    answer = http.post("/subjects/s/versions", json={"metadata": {"properties": {"k": "v"}}}).json()
    assert (answer["version"], answer["schema"]) == (2, A)


def test_references(http) -> None:
    register(http, "b", '{"type":"record","name":"B","namespace":"n","fields":[]}')
    order = '{"type":"record","name":"A","namespace":"n","fields":[{"name":"b","type":"B"}]}'
    reference = {"name": "n.B", "subject": "b", "version": 1}
    assert refusal(http.post("/subjects/a/versions", json={"schema": order}))[:2] == (422, 42201)
    schema_id = register(http, "a", order, references=[reference])
    assert http.get(f"/schemas/ids/{schema_id}").json() == {"references": [reference], "schema": order}
    resolved = http.get(f"/schemas/ids/{schema_id}?format=resolved").json()["schema"]
    assert json.loads(resolved)["fields"][0]["type"] == {"type": "record", "name": "B", "fields": []}
    assert register(http, "latest", order, references=[reference | {"version": -1}]) == schema_id
    assert http.get("/subjects/b/versions/1/referencedby").json() == [schema_id]
    key = "{magic=1,keytype=SCHEMA,subject=b,version=1}"
    expected = (422, 42206, f"One or more references exist to the schema {key}.")
    assert refusal(http.delete("/subjects/b")) == expected
    assert refusal(http.delete("/subjects/b/versions/1")) == expected
    missing = http.post("/subjects/a/versions", json={"schema": order, "references": [reference | {"version": 9}]})
    assert refusal(missing) == (
        422,
        42201,
        'Invalid schema of type AVRO, details: No schema reference found for subject "b" and version 9',
    )
    for subject in ("a", "latest"):
        assert http.delete(f"/subjects/{subject}").status_code == 200
    assert http.delete("/subjects/b").json() == [1]
    assert refusal(http.delete("/subjects/b?permanent=true"))[:2] == (422, 42206)


def test_normalize_puts_metadata_in_order(http) -> None:
    first = '{"type":"record","name":"R","doc":"","fields":[],"z":1,"a":2}'
    second = '{"type":"record","name":"R","fields":[],"a":2,"z":1}'
    assert register(http, "plain", first) != register(http, "plain2", second)
    path = "/subjects/{}/versions?normalize=true"
    ids = {http.post(path.format(s), json={"schema": each}).json()["id"] for s, each in (("n", first), ("n2", second))}
    assert len(ids) == 1
    assert http.post("/subjects/n?normalize=true", json={"schema": first}).json()["version"] == 1


def test_other_schema_types_are_refused_clearly(http) -> None:
    answer = http.post("/subjects/s/versions", json={"schema": "{}", "schemaType": "THRIFT"})
    assert refusal(answer) == (422, 42201, "Invalid schema type THRIFT; the types are JSON, PROTOBUF, AVRO")


def test_lists_are_paged_and_filtered(http) -> None:
    for subject in ("a-value", "b-value", "b-key"):
        register(http, subject, A)
    assert http.get("/subjects?offset=1&limit=1").json() == ["b-key"]
    assert http.get("/subjects?subjectPrefix=b").json() == ["b-key", "b-value"]
    assert [each["subject"] for each in http.get("/schemas?subjectPrefix=a&latestOnly=true").json()] == ["a-value"]
    assert http.get("/subjects?limit=many").status_code == 404


def test_content_types(http) -> None:
    body = json.dumps({"schema": A})
    for accepted in (V1, "application/vnd.schemaregistry+json", "application/json; charset=utf-8"):
        answer = http.post("/subjects/s/versions", content=body, headers={"Content-Type": accepted})
        assert answer.status_code == 200
    answer = http.post("/subjects/s/versions", data={"schema": A})
    assert refusal(answer) == (415, 415, "HTTP 415 Unsupported Media Type")
