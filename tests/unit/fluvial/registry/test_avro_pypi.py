"""Our verdicts on pairs of Avro schemas beside those of the reference implementation in Python (PyPI's `avro`)."""

import json
import random

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.test import test_compatibility
from avro_schemas import SchemaMaker, evolved

from fluvial.registry.formats.avro.compatibility import differences
from fluvial.registry.formats.avro.parse import AvroSyntaxError, parse
from fluvial.registry.formats.schema_kind import TooComplexError

PAIRS = 600
COMPATIBLE = SchemaCompatibilityType.compatible


def pairs() -> list[tuple[str, str]]:
    chance = random.Random(20130101)
    found = []
    while len(found) < PAIRS:
        written = SchemaMaker(chance).schema()
        found.append((json.dumps(evolved(written, chance)), json.dumps(written)))
    return found


@pytest.mark.filterwarnings("ignore::avro.errors.IgnoredLogicalType")
def test_verdicts_are_those_of_the_reference_in_python() -> None:
    compared, refused = 0, 0
    for reader_text, writer_text in pairs():
        try:
            reader, writer = parse(reader_text), parse(writer_text)
            found = differences(reader.schema, writer.schema)
        except (AvroSyntaxError, TooComplexError):
            continue
        try:
            theirs = ReaderWriterCompatibilityChecker().get_compatibility(
                avro.schema.parse(reader.text), avro.schema.parse(writer.text)
            )
        except AvroException:
            continue  # it does not take a type that says it has no namespace, within one
        if "name_mismatch" in [str(each.value) for each in theirs.incompatibilities] and '"aliases"' in reader.text:
            continue  # it looks for an alias without the namespace that the alias has
        assert (theirs.compatibility is COMPATIBLE) == (not found), (reader.text, writer.text)
        compared += 1
        refused += bool(found)
    assert compared > PAIRS / 2
    assert refused > PAIRS / 20


def test_its_own_tables_have_the_same_verdicts() -> None:
    """Every schema of its tests, which the package ships, against every other."""
    schemas = {
        name: schema for name, schema in vars(test_compatibility).items() if isinstance(schema, avro.schema.Schema)
    }
    ours = {name: parse(str(schema)).schema for name, schema in schemas.items()}
    checker = ReaderWriterCompatibilityChecker()
    wrong = [
        (reader, writer)
        for reader in schemas
        for writer in schemas
        if (checker.get_compatibility(schemas[reader], schemas[writer]).compatibility is COMPATIBLE)
        is bool(differences(ours[reader], ours[writer]))
    ]
    assert len(schemas) > 50
    assert wrong == []
