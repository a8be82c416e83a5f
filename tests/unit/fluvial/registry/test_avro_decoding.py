"""
What our Avro rules promise, held against fastavro: it reads what we call compatible and what we call decodable.
"""

import io
import json
import random
from array import array
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from avro_schemas import EndlessError, SchemaMaker, datum, evolved
from hypothesis import given, settings
from hypothesis import strategies as st

from fluvial.registry.formats.avro.compatibility import differences
from fluvial.registry.formats.avro.compiled_skip import compiled_skip
from fluvial.registry.formats.avro.parse import AvroSyntaxError, parse
from fluvial.registry.formats.avro.skip import compile_check, compile_skip
from fluvial.registry.formats.schema_kind import Parsed, TooComplexError, UndecodableError

LINKED_LIST = '{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}'


def encoded(parsed: Parsed, chance: random.Random) -> Iterator[bytes]:
    """A few data of a schema, as fastavro writes them."""
    schema = fastavro.parse_schema(json.loads(parsed.text))
    for _ in range(3):
        try:
            value = datum(parsed.schema, chance)
        except EndlessError:
            return
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        yield out.getvalue()


def known_to_fastavro(*parsed: Parsed) -> bool:
    """fastavro takes a type that says it has no namespace for one of the namespace around it, or does not find it."""
    if any('"namespace":""' in each.text for each in parsed):
        return False
    try:
        for each in parsed:
            fastavro.parse_schema(json.loads(each.text))
    except fastavro.schema.UnknownType:
        return False
    return True


def holds(text: str, word: str) -> bool:
    return f'"{word}"' in text


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_we_call_compatible_fastavro_reads(seed: int) -> None:
    chance = random.Random(seed)
    written = SchemaMaker(chance).schema()
    read = evolved(written, chance)
    try:
        writer, reader = parse(json.dumps(written)), parse(json.dumps(read))
        if differences(reader.schema, writer.schema):
            return
    except (AvroSyntaxError, TooComplexError):
        return
    if holds(writer.text, "bytes") and holds(reader.text, "string"):
        return  # bytes read as a string need not be UTF-8: the specification promises it nevertheless
    if holds(writer.text, "aliases"):
        return  # fastavro does not look at a nested record's aliases
    if not known_to_fastavro(writer, reader):
        return
    writer_schema = fastavro.parse_schema(json.loads(writer.text))
    reader_schema = fastavro.parse_schema(json.loads(reader.text))
    for data in encoded(writer, chance):
        fastavro.schemaless_reader(io.BytesIO(data), writer_schema, reader_schema)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    cut=st.integers(0, 200),
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
)
def test_skipping_agrees_with_reading(seed: int, cut: int, flips: list[tuple[int, int]]) -> None:
    try:
        parsed = parse(json.dumps(SchemaMaker(random.Random(seed)).schema()))
    except AvroSyntaxError:
        return
    if not known_to_fastavro(parsed):
        return
    check, skip = compile_check(parsed.schema), compile_skip(parsed.schema)
    skips = [skip] if (compiled := compiled_skip(parsed.schema)) is None else [skip, compiled]
    schema = fastavro.parse_schema(json.loads(parsed.text))
    for data in encoded(parsed, random.Random(seed)):
        check(b"12345" + data, 5)
        damaged = bytearray(data)
        for at, byte in flips:
            if at < len(damaged):
                damaged[at] = byte
        for each in (data, bytes(damaged), data[:cut] if cut < len(data) else data + b"\0"):
            agrees_on_damage(check, schema, each)
            for walk in skips:
                agrees_within_a_batch(check, walk, each)


def agrees_within_a_batch(check: Any, skip: Any, data: bytes) -> None:
    """What skips sees what checks sees, also where other records follow."""
    try:
        check(data, 0)
        expected = True
    except UndecodableError:
        expected = False
    for behind in (b"", b"\0" * 40, b"\xff" * 40):
        try:
            found = skip(b"12345" + data + behind, 5) == 5 + len(data)
        except (ValueError, LookupError, RecursionError):
            found = False
        assert found is expected, behind


def test_a_schema_with_many_types_is_checked() -> None:
    fields = [
        {"name": f"f{n}", "type": {"type": "record", "name": f"R{n}", "fields": [{"name": "x", "type": "string"}]}}
        for n in range(900)
    ]
    skip = compile_skip(parse(json.dumps({"type": "record", "name": "R", "fields": fields})).schema)
    assert skip(b"\2a" * len(fields), 0) == 2 * len(fields)
    with pytest.raises((ValueError, LookupError)):
        skip(b"\2a" * (len(fields) - 1), 0)


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}
LONGS, TEXTS = {"type": "array", "items": "long"}, {"type": "map", "values": "long"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (COLOUR, [b"\0", b"\2"], [b"\4", b"\1", b"\x80", b""]),
        (["null", "boolean"], [b"\0", b"\2\0", b"\2\1"], [b"\2\2", b"\4", b"\1", b"\2"]),
        ("int", [b"\0", b"\xff" * 4 + b"\x7f"], [b"\xff" * 5 + b"\0", b"\xff"]),
        ("long", [b"\xff" * 9 + b"\1"], [b"\xff" * 10 + b"\0"]),
        ({"type": "fixed", "name": "F", "size": 3}, [b"abc"], [b"ab", b"abcd"]),
        ("bytes", [b"\0", b"\2\xff"], [b"\2", b"\1", b"\4\xff"]),
        ("string", [b"\4\xc3\xa4"], [b"\2\xff", b"\6\xed\xa0\x80", b"\4a"]),
        (
            LONGS,
            [b"\0", b"\2\7\0", b"\3\4\6\6\0", b"\2\7\2\7\0"],
            [b"\3\6\6\6\0", b"\3\2\6\6\0", b"\3\1\6\6\0", b"\2\7"],
        ),
        ({"type": "array", "items": "null"}, [b"\2\0", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0"], [b"\2", b"\1\2\0"]),
        (TEXTS, [b"\0", b"\2\2a\7\0", b"\1\6\2a\7\0"], [b"\2\2\xff\7\0", b"\1\4\2a\7\0", b"\2\2a\0"]),
    ],
)
def test_what_is_no_datum_is_none_in_both_walks(schema: Any, good: list[bytes], bad: list[bytes]) -> None:
    parsed = parse(json.dumps(schema)).schema
    check = compile_check(parsed)
    for walk in (compile_skip(parsed), compiled_skip(parsed)):
        if walk is None:
            continue
        for data in good:
            check(data, 0)
            agrees_within_a_batch(check, walk, data)
        for data in bad:
            with pytest.raises(UndecodableError):
                check(data, 0)
            agrees_within_a_batch(check, walk, data)


def test_what_is_compiled_knows_a_program_when_it_sees_one() -> None:
    walk = pytest.importorskip("log_broker.records._walk")
    record_of_itself = array("i", [8, 1, 0]).tobytes()
    with pytest.raises(ValueError, match="no such datum"):
        walk.AvroSkip(record_of_itself)(b"", 0)
    for numbers in (
        [],
        [8],
        [8, -1],
        [8, 2, 0],
        [8, 1, 1],
        [7, 1, 3],
        [9, 5],
        [11, 0],
        [-1, 0],
        [2, 5, 9],
        [8, 2**31 - 1],
    ):
        with pytest.raises(ValueError, match="no program"):
            walk.AvroSkip(array("i", numbers).tobytes())
    with pytest.raises(ValueError, match="no program"):
        walk.AvroSkip(b"\1\0\0\0\0")
    boolean = walk.AvroSkip(array("i", [1, 0]).tobytes())
    assert boolean(b"\0\1\2", 1) == 2
    for at in (-1, 2, 3, 4):
        with pytest.raises(ValueError, match="no such datum"):
            boolean(b"\0\1\2", at)


def test_what_is_nested_deeper_than_the_compiled_walk_goes_is_left_to_python() -> None:
    schema = parse(LINKED_LIST).schema
    skip, compiled = compile_skip(schema), compiled_skip(schema)
    if compiled is None:
        pytest.skip("nothing is compiled in this environment")
    assert compiled(b"\2" * 40 + b"\0", 0) == skip(b"\2" * 40 + b"\0", 0) == 41
    assert skip(b"\2" * 200 + b"\0", 0) == 201
    for data in (b"\2" * 200 + b"\0", b"\2" * 1_000_000 + b"\0"):
        with pytest.raises(ValueError, match="no such datum"):
            compiled(data, 0)


def test_a_record_that_holds_itself_is_skipped() -> None:
    skip = compile_skip(parse(LINKED_LIST).schema)
    assert skip(b"\2\2\0", 0) == 3
    with pytest.raises(RecursionError):
        skip(b"\2" * 100_000, 0)


def agrees_on_damage(check: Any, schema: Any, data: bytes) -> None:
    """What we accept must be readable; we may refuse more, because fastavro forgives sizes and ranges."""
    try:
        check(data, 0)
    except UndecodableError:
        return
    stream = io.BytesIO(data)
    fastavro.schemaless_reader(stream, schema, None)
    assert stream.tell() == len(data)


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ('"int"', b"", "the bytes end early"),
        ('"int"', b"\x02\x02", "1 bytes are left over"),
        ('"int"', b"\xff" * 20, "a number of more than 5 bytes"),
        ('"long"', b"\xff" * 20, "a number of more than 10 bytes"),
        ('"boolean"', b"\x02", "2 is not a boolean"),
        ('"string"', b"\x01", "a length of -1"),
        ('"string"', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "the bytes end early"),
        ('"string"', b"\x02\xff", "a string that is not UTF-8: invalid start byte"),
        ('"bytes"', b"\x03ab", "a length of -2"),
        ('["null","int"]', b"\x04", "2 is not one of the 2 branches of the union"),
        ('{"type":"enum","name":"E","symbols":["A"]}', b"\x02", "1 is not one of the 1 symbols"),
        ('{"type":"fixed","name":"F","size":4}', b"abc", "the bytes end early"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"S",'
            '"fields":[{"name":"b","type":"string"}]}}]}',
            b"\x06ab",
            "field a.b: the bytes end early",
        ),
        (LINKED_LIST, b"\x02" * 100_000, "nested too deeply"),
        ('{"type":"array","items":"int"}', b"\x01\x04\x02\x00", "a block is not as long as it says"),
    ],
)
def test_reasons(schema: str, data: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError) as refused:
        compile_check(parse(schema).schema)(data, 0)
    assert str(refused.value) == reason


def test_a_huge_count_of_nothing_takes_no_time() -> None:
    check = compile_check(parse('{"type":"array","items":"null"}').schema)
    check(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\0", 0)


def test_a_deep_list_is_decodable() -> None:
    compile_check(parse(LINKED_LIST).schema)(b"\x02" * 100 + b"\0", 0)
