"""JSON Schemas as the registry keeps them: over HTTP, their canonical text and references, what may follow what."""

import json

import pytest

from fluvial.registry.formats.json_schema.kind import JsonSchemaKind
from fluvial.registry.formats.json_schema.parse import parse
from fluvial.registry.formats.schema_kind import SchemaSyntaxError

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string", "maxLength": 10}},
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.fixture
def http(registry_server):
    return registry_server.http


def post(http, subject: str, schema, *, references=(), path="/subjects/{}/versions", **params):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = {"schema": text, "schemaType": "JSON", "references": list(references)}
    return http.post(path.format(subject), json=body, params=params)


def faults(old, new) -> list[str]:
    """The kinds and places of what keeps data of `old` from being valid under `new`."""
    found = JsonSchemaKind().faults(
        reader=parse(json.dumps(new)), writer=parse(json.dumps(old)), reader_word="new", writer_word="old"
    )
    return [f"{each.split(chr(34))[1]} {each.split(chr(39))[1]}" for each in found]


def test_registered_and_served(http) -> None:
    assert post(http, "orders-value", json.dumps(ORDER, indent=4)).json() == {"id": 1}
    assert post(http, "orders-value", ORDER).json() == {"id": 1}
    assert post(http, "copies-value", ORDER).json() == {"id": 1}
    text = json.dumps(ORDER, separators=(",", ":"))
    assert http.get("/schemas/ids/1").json() == {"schemaType": "JSON", "schema": text}
    assert http.get("/subjects/orders-value/versions/1/schema").text == text
    found = post(http, "orders-value", ORDER, path="/subjects/{}").json()
    assert (found["version"], found["schemaType"]) == (1, "JSON")
    assert http.post("/subjects/orders-value", json={"schema": '"string"'}).json()["error_code"] == 40403
    assert "JSON" in http.get("/schemas/types").json()


def test_normalize_passes_over_the_order_of_words(http) -> None:
    turned = dict(reversed(ORDER.items()))
    assert (
        post(http, "a", ORDER, normalize="true").json()["id"] == post(http, "b", turned, normalize="true").json()["id"]
    )
    assert post(http, "c", ORDER).json()["id"] != post(http, "d", turned).json()["id"]


def test_a_broken_contract_is_answered_in_the_words_of_confluents_registry(http) -> None:
    post(http, "orders-value", ORDER)
    broken = ORDER | {"properties": ORDER["properties"] | {"id": {"type": "string"}}, "required": ["id", "note"]}
    answer = post(http, "orders-value", broken)
    assert (answer.status_code, answer.json()["error_code"]) == (409, 409)
    check = post(http, "orders-value", broken, path="/compatibility/subjects/{}/versions/latest", verbose="true")
    assert check.json()["messages"][:3] == [
        '{errorType:"REQUIRED_ATTRIBUTE_ADDED", description:"The keyword at path \'#/required/note\' in the new schema '
        "is not present in the old schema'}",
        '{errorType:"TYPE_CHANGED", description:"A type at path \'#/properties/id\' is different between the new '
        "schema and the old schema'}",
        "{oldSchemaVersion: 1}",
    ]


def test_levels_look_in_their_direction(http) -> None:
    narrower = ORDER | {"properties": ORDER["properties"] | {"note": {"type": "string", "maxLength": 5}}}
    for level, compatible in {
        "BACKWARD": False,
        "FORWARD": True,
        "FULL": False,
        "NONE": True,
        "BACKWARD_TRANSITIVE": False,
        "FORWARD_TRANSITIVE": True,
        "FULL_TRANSITIVE": False,
    }.items():
        subject = f"s-{level}"
        post(http, subject, ORDER)
        http.put(f"/config/{subject}", json={"compatibility": level})
        found = post(http, subject, narrower, path="/compatibility/subjects/{}/versions/latest").json()
        assert found == {"is_compatible": compatible}, level


def test_a_subject_keeps_its_type(http) -> None:
    http.post("/subjects/s/versions", json={"schema": '"string"'})
    answer = post(http, "s", {"type": "string"})
    assert answer.status_code == 409
    assert "Incompatible because of different schema type" in answer.json()["message"]
    http.put("/config/s", json={"compatibility": "NONE"})
    assert post(http, "s", {"type": "string"}).status_code == 200


def test_references(http) -> None:
    post(
        http,
        "customer",
        {"$id": "https://example.org/customer.json", "type": "object", "$defs": {"n": {"type": "string"}}},
    )
    reference = {"name": "customer.json", "subject": "customer", "version": 1}
    order = {"type": "object", "properties": {"by": {"$ref": "customer.json"}, "n": {"$ref": "customer.json#/$defs/n"}}}
    assert post(http, "order", order, references=[reference]).status_code == 200
    assert http.get("/subjects/customer/versions/1/referencedby").json() == [2]
    answer = post(http, "other", order)
    assert answer.status_code == 422
    assert (
        'nothing is fetched; register that schema and name it "customer.json" in `references`'
        in answer.json()["message"]
    )
    # The referenced schema counts when the referring one is compared.
    post(http, "customer", {"type": "object", "$defs": {"n": {"type": ["string", "null"]}}})
    newer = reference | {"version": 2}
    check = {"path": "/compatibility/subjects/{}/versions/latest"}
    assert post(http, "order", order, references=[newer], **check).json() == {"is_compatible": True}
    post(http, "order", order, references=[newer])
    assert post(http, "order", order, references=[reference], **check).json() == {"is_compatible": False}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
OPEN = {"type": "object", "properties": {"a": STRING}}
CLOSED = OPEN | {"additionalProperties": False}
PARTIAL = OPEN | {"additionalProperties": STRING}
WITH_B = {"properties": {"a": STRING, "b": INTEGER}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (INTEGER, NUMBER, []),
        (NUMBER, INTEGER, ["TYPE_NARROWED #/"]),
        (STRING, INTEGER, ["TYPE_CHANGED #/"]),
        (STRING, {"type": ["string", "null"]}, []),
        ({"type": ["string", "null"]}, STRING, ["TYPE_NARROWED #/"]),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, []),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, ["ENUM_ARRAY_NARROWED #/enum"]),
        ({"enum": ["a"]}, {"enum": ["b"]}, ["ENUM_ARRAY_CHANGED #/enum"]),
        (STRING | {"maxLength": 5}, STRING | {"maxLength": 6}, []),
        (STRING | {"maxLength": 5}, STRING | {"maxLength": 4}, ["MAX_LENGTH_DECREASED #/maxLength"]),
        (STRING, STRING | {"minLength": 1}, ["MIN_LENGTH_ADDED #/minLength"]),
        (STRING, STRING | {"pattern": "^a"}, ["PATTERN_ADDED #/pattern"]),
        (NUMBER | {"minimum": 1}, NUMBER | {"minimum": 0}, []),
        (NUMBER | {"minimum": 1}, NUMBER | {"exclusiveMinimum": 0}, []),
        (NUMBER | {"maximum": 1}, NUMBER | {"maximum": 0}, ["MAXIMUM_DECREASED #/maximum"]),
        (NUMBER | {"multipleOf": 4}, NUMBER | {"multipleOf": 2}, []),
        (NUMBER | {"multipleOf": 2}, NUMBER | {"multipleOf": 4}, ["MULTIPLE_OF_EXPANDED #/multipleOf"]),
        (CLOSED, CLOSED | WITH_B, []),
        (OPEN, OPEN | WITH_B, ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"]),
        (
            CLOSED,
            CLOSED | WITH_B | {"required": ["b"]},
            ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
        ),
        (OPEN | WITH_B, OPEN, []),
        (CLOSED | WITH_B, CLOSED, ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/b"]),
        (
            PARTIAL,
            PARTIAL | WITH_B,
            [
                "TYPE_CHANGED #/properties/b",
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/b",
            ],
        ),
        (OPEN, OPEN | {"required": ["a"]}, ["REQUIRED_ATTRIBUTE_ADDED #/required/a"]),
        (OPEN, {"type": "object", "properties": {"a": {**STRING, "default": ""}}, "required": ["a"]}, []),
        (OPEN | {"required": ["a"]}, OPEN, []),
        (OPEN, CLOSED, ["ADDITIONAL_PROPERTIES_REMOVED #/additionalProperties"]),
        (OPEN, PARTIAL, ["ADDITIONAL_PROPERTIES_NARROWED #/additionalProperties"]),
        (CLOSED, OPEN, []),
        ({"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, []),
        ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}, ["TYPE_NARROWED #/items"]),
        ({"type": "array"}, {"type": "array", "maxItems": 3}, ["MAX_ITEMS_ADDED #/maxItems"]),
        ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER, {"type": "null"}]}, []),
        ({"oneOf": [STRING, INTEGER, {"type": "null"}]}, {"oneOf": [STRING, INTEGER]}, ["SUM_TYPE_NARROWED #/"]),
        ({"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, NUMBER]}, []),
        ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER, NUMBER]}, ["SUM_TYPE_OVERLAPS #/oneOf"]),
        ({"anyOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER]}, ["COMBINED_TYPE_CHANGED #/"]),
        ({"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}, []),
        (STRING, {"allOf": [STRING, {"maxLength": 3}]}, ["MAX_LENGTH_ADDED #/maxLength", "PRODUCT_TYPE_EXTENDED #/"]),
        (STRING, {"allOf": [STRING, False]}, ["TYPE_CHANGED #/", "PRODUCT_TYPE_EXTENDED #/"]),
        ({"not": STRING}, {"not": {"type": ["string", "null"]}}, ["NOT_TYPE_EXTENDED #/not"]),
        ({"not": {"type": ["string", "null"]}}, {"not": STRING}, []),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "title": "x"}, []),
        ({"type": "object"}, {"type": "object", "if": OPEN, "then": CLOSED}, ["CONDITION_ADDED #/if"]),
        (False, STRING, []),
    ],
)
def test_what_may_follow_what(old, new, expected) -> None:
    assert faults(old, new) == expected


def test_the_same_schema_always_follows_itself_also_when_it_contains_itself() -> None:
    tree = {
        "$ref": "#/definitions/tree",
        "definitions": {"tree": {"properties": {"left": {"$ref": "#/definitions/tree"}}}},
    }
    assert faults(tree, tree) == []
    narrowed = json.loads(json.dumps(tree))
    narrowed["definitions"]["tree"]["required"] = ["left"]
    assert faults(narrowed, tree) == []
    assert faults(tree, narrowed)[0] == "REQUIRED_ATTRIBUTE_ADDED #/required/left"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not JSON: "),
        ("[]", "the schema at # is []; it is an object, true or false"),
        ('{"type": "text"}', '`type` at # is "text"; it is one of array, boolean'),
        (
            '{"properties": {"a": {"minLength": -1}}}',
            "`minLength` at #/properties/a is -1; it is a whole number from 0",
        ),
        ('{"required": "a"}', '`required` at # is "a"; it is a list of different names'),
        ('{"$schema": "http://json-schema.org/draft-03/schema#"}', "the meta-schema"),
        (
            '{"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicRef": "#x"}',
            "$dynamicRef at # is not kept",
        ),
        ('{"$ref": "#/definitions/x"}', "leads to nothing"),
        ('{"$ref": "http://127.0.0.1:1/x.json"}', "nothing is fetched"),
        ('{"$ref": "#"}', "leads round in a circle"),
        ('{"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}}}', "round in a circle"),
        ('{"maximum": NaN}', "NaN is not a JSON value"),
        ('{"maximum": 1e999}', "the number 1e999 is too large"),
        ('{"title": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_place(schema, words) -> None:
    with pytest.raises(SchemaSyntaxError) as refused:
        parse(schema)
    assert words in str(refused.value)
