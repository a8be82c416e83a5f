"""What our rules of JSON Schema and Protobuf promise, held against the libraries that read the data."""

import json
import random
import warnings

import jsonschema
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schema_maker import URIS, JsonSchemaMaker
from protobuf_maker import ProtobufMaker

from fluvial.registry.formats.json_schema import compatibility as json_compatibility
from fluvial.registry.formats.json_schema import parse as json_parse
from fluvial.registry.formats.protobuf import compatibility as protobuf_compatibility
from fluvial.registry.formats.protobuf import parse as protobuf_parse
from fluvial.registry.formats.schema_kind import SchemaSyntaxError

JUDGES = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
NO_FORMATS = jsonschema.FormatChecker(())


def is_valid(judge, value) -> bool | None:
    """Whether a value is valid; None where the judge itself stumbles (`additionalItems` beside `items: true`)."""
    try:
        return judge.is_valid(value)
    except (RecursionError, TypeError):
        return None


@settings(max_examples=100, deadline=None)
@given(chance=st.randoms(use_true_random=False), draft=st.sampled_from(sorted(URIS)))
def test_what_follows_a_json_schema_takes_all_its_data(chance: random.Random, draft: int) -> None:
    maker = JsonSchemaMaker(chance, draft)
    old = maker.document()
    new = old
    for _ in range(chance.randint(1, 3)):
        changed = maker.changed(new)
        if isinstance(changed, dict):
            new = {"definitions": old["definitions"], **changed, "$schema": URIS[draft]}
    try:
        writer, reader = json_parse.parse(json.dumps(old)), json_parse.parse(json.dumps(new))
    except SchemaSyntaxError:
        return
    assert json_compatibility.differences(writer.schema, writer.schema) == []
    if json_compatibility.differences(reader.schema, writer.schema):
        return
    before, after = JUDGES[draft](old), JUDGES[draft](new)
    for _ in range(40):
        value = maker.value()
        if is_valid(before, value):
            assert is_valid(after, value) is not False, (old, new, value)


WRONG = [None, True, -1, 1.5, "text", "", [], ["a", "a"], [1], {}, {"a": 1}, {"a": ["b"]}, [{}], ["string", "null"]]


@settings(max_examples=120, deadline=None)
@given(chance=st.randoms(use_true_random=False), draft=st.sampled_from(sorted(URIS)))
def test_what_is_a_json_schema_is_what_its_meta_schema_says(chance: random.Random, draft: int) -> None:
    maker = JsonSchemaMaker(chance, draft)
    schema = maker.document()
    words = [each for each in schema if each not in {"$schema", "$ref"}]
    schema[chance.choice([*words, "items", "required", "maxLength", "pattern", "type"])] = chance.choice(WRONG)
    try:
        JUDGES[draft].check_schema(schema, format_checker=NO_FORMATS)
        expected = True
    except jsonschema.SchemaError:
        expected = False
    try:
        json_parse.parse(json.dumps(schema))
        found = True
    except SchemaSyntaxError as error:
        found = "leads to nothing" in str(error)
    assert found == expected, schema


@settings(max_examples=100, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_what_follows_a_protobuf_schema_loses_nothing_that_it_keeps(chance: random.Random) -> None:
    maker = ProtobufMaker(chance)
    old = maker.file()
    new = maker.changed(old)
    writer, reader = protobuf_parse.parse(maker.text(old)), protobuf_parse.parse(maker.text(new))
    assert protobuf_compatibility.differences(writer.schema, writer.schema) == []
    if protobuf_compatibility.differences(reader.schema, writer.schema):
        return
    written, read = (class_of(each.schema.file) for each in (writer, reader))
    for _ in range(5):
        message = written()
        maker.fill(message)
        after = read.FromString(message.SerializeToString())
        assert_kept(message, after)


def class_of(file):
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("p.Root"))


def assert_kept(before, after) -> None:
    """Every field that both know by number has the value it had, as far as the types say the same of it."""
    fields = {each.number: each for each in after.DESCRIPTOR.fields}
    for field, value in before.ListFields():
        other = fields.get(field.number)
        if other is None or field.is_repeated != other.is_repeated:
            continue
        found = getattr(after, other.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            assert value.keys() == found.keys()
            for key, each in value.items():
                if hasattr(each, "DESCRIPTOR"):
                    assert_kept(each, found[key])
                else:
                    assert plain(each) == plain(found[key])
        elif field.message_type is not None:
            pairs = zip(value, found, strict=True) if field.is_repeated else [(value, found)]
            for one, another in pairs:
                assert_kept(one, another)
        elif field.is_repeated:
            assert [plain(each) for each in value] == [plain(each) for each in found]
        else:
            assert plain(value) == plain(found), (field.full_name, value, found)


def plain(value):
    """Text and bytes, numbers and truth: one thing on the wire. Values are kept small, so none is cut off."""
    if isinstance(value, str):
        return value.encode()
    return int(value) if isinstance(value, bool) else value


@pytest.fixture(autouse=True)
def no_deprecations():
    """The judge says of some schemas that they are of an old form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
