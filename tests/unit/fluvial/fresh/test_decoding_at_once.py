"""Records that are decoded all at once, beside the same ones decoded one by one by fastavro."""

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluvial.fresh.decoding import Decoder, Records
from fluvial.fresh.flat_records import FlatRecords
from fluvial.spark.avro import Contract

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "bytes": ("bytes", st.binary()),
    "string": ("string", st.text()),
    "date": ({"type": "int", "logicalType": "date"}, st.integers(-700_000, 2_900_000)),
    "millis": ({"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(2**35), 2**37)),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, st.integers(-(2**50), 2**50)),
    "local": ({"type": "long", "logicalType": "local-timestamp-millis"}, st.integers(-(2**35), 2**37)),
}
PREFIX = b"\0\0\0\0\7"


def schema_of(kinds: list[tuple[str, bool]]) -> dict[str, Any]:
    """A record of these kinds; those that may be null have null first or last."""
    fields = []
    for number, (kind, is_nullable) in enumerate(kinds):
        declared = KINDS[kind][0]
        union = ["null", declared] if number % 2 else [declared, "null"]
        fields.append({"name": f"f{number}", "type": union if is_nullable else declared})
    return {"type": "record", "name": "Event", "fields": fields}


def decoder_of(schema: dict[str, Any]) -> Decoder:
    text = json.dumps(schema)
    return Decoder("events", contract(text, {7: text}))


def one_by_one(schema: dict[str, Any], given_: Records) -> pa.RecordBatch:
    decoder = decoder_of(schema)
    decoder._flat.clear()
    return decoder.events(given_)


def contract(reader: str, writers: dict[int, str]) -> Contract:
    return Contract(subject="events-value", reader=reader, writers=writers, reader_id=max(writers))


def body_of(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    plain = json.loads(json.dumps(schema), object_hook=_without_logical)
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return PREFIX + out.getvalue()


def _without_logical(each: dict[str, Any]) -> Any:
    return each["type"] if "logicalType" in each else each


def records(values: list[bytes | None]) -> Records:
    numbers = [*range(len(values))]
    return Records([0] * len(values), numbers, numbers, [b"k"] * len(values), values)


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether they are equal bit by bit, also where numbers are none."""
    return one.schema == other.schema and repr(one.to_pydict()) == repr(other.to_pydict())


@given(st.data())
def test_they_are_the_same(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.tuples(st.sampled_from([*KINDS]), st.booleans()), min_size=1, max_size=6))
    schema = schema_of(kinds)
    row = st.fixed_dictionaries(
        {f"f{at}": KINDS[kind][1] | st.none() if null else KINDS[kind][1] for at, (kind, null) in enumerate(kinds)}
    )
    rows = data.draw(st.lists(row | st.none(), max_size=8))
    given_ = records([None if each is None else body_of(schema, each) for each in rows])
    decoder = decoder_of(schema)
    assert decoder._flat
    assert same(decoder.events(given_), one_by_one(schema, given_))


@given(st.data())
def test_bytes_that_are_no_values_are_judged_as_one_by_one(data: st.DataObject) -> None:
    kinds = data.draw(
        st.lists(st.tuples(st.sampled_from(["boolean", "double", "string", "bytes"]), st.booleans()), min_size=1)
    )
    schema = schema_of(kinds)
    prefix = st.sampled_from([PREFIX, PREFIX, PREFIX, b"\0\0\0\0\x08", b"\1\0\0\0\7", b"\0"])
    # Small numbers are branches and lengths that there may be.
    body = st.lists(st.integers(0, 6) | st.integers(0, 255), max_size=30).map(bytes)
    bodies = data.draw(st.lists(st.tuples(prefix, body).map(b"".join) | st.none(), min_size=1, max_size=6))
    assert same(decoder_of(schema).events(records(bodies)), one_by_one(schema, records(bodies)))


EVENT = schema_of([("string", True), ("long", False), ("string", False)])
GOOD = body_of(EVENT, {"f0": "a", "f1": 1, "f2": "b"})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("one byte too many", [GOOD, GOOD + b"\0", GOOD]),
        ("what is too many is what lacks", [GOOD + GOOD[-1:], GOOD[:-1], GOOD]),
        ("cut short", [GOOD, GOOD[:-1]]),
        ("no UTF-8", [GOOD, GOOD.replace(b"a", b"\xff"), body_of(EVENT, {"f0": None, "f1": 2, "f2": "c"})]),
        ("an empty body", [GOOD, PREFIX]),
        ("no prefix", [GOOD, b"\0\0"]),
        ("nothing at all", [b"", GOOD]),
        ("another schema", [GOOD, b"\0\0\0\0\x09" + GOOD[5:]]),
        ("all of another schema", [b"\0\0\0\0\x09" + GOOD[5:]] * 2),
        ("another magic byte", [b"\1" + GOOD[1:]] * 2),
        ("a length without end", [GOOD, PREFIX + b"\xff" * 40]),
        ("a length below zero", [GOOD, PREFIX + b"\0\1" + GOOD[7:]]),
        ("a branch that is not there", [GOOD, PREFIX + b"\x08" + GOOD[6:]]),
    ],
)
def test_what_does_not_decode_keeps_no_other_from_it(name: str, values: list[bytes | None]) -> None:
    given_ = records([*values, None])
    found = decoder_of(EVENT).events(given_)
    assert same(found, one_by_one(EVENT, given_)), name
    assert found["_offset"].to_pylist()[-1] == len(values)


def test_a_number_that_is_no_int_is_no_value() -> None:
    """Of 2**31, which a `long` takes."""
    schema = schema_of([("int", False)])
    large = body_of({**schema, "fields": [{"name": "f0", "type": "long"}]}, {"f0": 2**31})
    good = body_of(schema, {"f0": -(2**31)})
    assert decoder_of(schema).events(records([large, good]))["f0"].to_pylist() == [-(2**31)]


def test_only_flat_records_of_the_contracts_own_schema_are_decoded_so() -> None:
    nested = {"type": "record", "name": "E", "fields": [{"name": "l", "type": {"type": "array", "items": "int"}}]}
    assert not FlatRecords.takes(nested)
    assert not FlatRecords.takes({"type": "enum", "name": "E", "symbols": ["A"]})
    older = schema_of([("string", True)])
    newer = {**older, "fields": [*older["fields"], {"name": "more", "type": "int", "default": 4}]}
    decoder = Decoder("events", contract(json.dumps(newer), {7: json.dumps(older), 8: json.dumps(newer)}))
    of_newer = b"\0\0\0\0\x08" + body_of(newer, {"f0": "b", "more": 5})[5:]
    batch = decoder.events(records([of_newer, body_of(older, {"f0": "a"}), None, of_newer]))
    assert batch["more"].to_pylist() == [5, 4, None, 5]
    assert batch["_schema_id"].to_pylist() == [8, 7, None, 8]
    assert batch["_offset"].to_pylist() == [0, 1, 2, 3]
    assert [*decoder._flat] == [8]
