"""The fields of a schema as they are listed and compared."""

from fluvial.registry.fields import field_changes, fields_of

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2, "fluvial.min": 0}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string", "doc": "Of the order.", "fluvial.pattern": "[A-Z]+"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"},
        {"name": "before", "type": ["null", "Kind"], "default": None},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "price", "type": ["null", PRICE]}]},
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "parent", "type": ["null", "Order"], "default": None},
    ],
}


def test_nested_fields_are_listed_behind_what_holds_them() -> None:
    listed = [(each.path, each.type, each.nullable, each.default, dict(each.properties)) for each in fields_of(ORDER)]
    assert listed == [
        ("id", "string", False, None, {"fluvial.pattern": "[A-Z]+"}),
        ("kind", "enum of A, B", False, '"A"', {}),
        ("before", "enum of A, B", True, "null", {}),
        ("lines", "array of record Line", False, None, {}),
        ("lines[].price", "decimal(9, 2)", True, None, {"fluvial.min": 0}),
        ("tags", "map of long", False, None, {}),
        ("parent", "record Order", True, "null", {}),
    ]
    assert fields_of("string") == []


def test_changes_are_told_field_by_field() -> None:
    fields = ORDER["fields"]
    kept = [each for each in fields if each["name"] not in {"id", "tags"}]
    changed = {**fields[0], "type": ["null", "string"], "default": None, "doc": "Ours."}
    after = {**ORDER, "fields": [changed, *kept, {"name": "at", "type": "int", "default": 0}]}
    told = [(each.kind, each.path, each.details) for each in field_changes(ORDER, after)]
    assert told == [
        ("changed", "id", ["nullable: False -> True", "default: none -> null", "doc: Of the order. -> Ours."]),
        ("added", "at", ["int, default 0"]),
        ("removed", "tags", ["map of long"]),
    ]
    assert field_changes(ORDER, ORDER) == []
