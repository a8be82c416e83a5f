"""Our Avro rules against Apache Avro's own, which the Spark distribution carries: texts, refusals and verdicts."""

import json
import random
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest
from avro_schemas import SchemaMaker, evolved

from fluvial.registry.formats.avro.compatibility import differences
from fluvial.registry.formats.avro.parse import AvroSyntaxError, parse
from fluvial.registry.formats.schema_kind import TooComplexError

ORACLE = Path(__file__).with_name("AvroOracle.java")
JARS = Path(pyspark.__file__).parent / "jars"
JAR_NAMES = (
    "avro-1",
    "jackson-core-2",
    "jackson-databind-2",
    "jackson-annotations-2",
    "slf4j-api-2",
    "commons-compress",
)
SCHEMAS = 1_500

ODD_SCHEMAS = [
    '"string"',
    '{"type":"string"}',
    '{"type":{"type":"string"}}',
    '{"type":"record","name":"A","fields":[{"name":"a","type":"int","default":"x"}]}',
    '{"type":"record","name":"A","fields":[{"name":"a","type":["int","null"],"default":null}]}',
    '{"type":"record","name":"A","fields":[{"name":"a","type":"nope"}]}',
    '{"type":"record","name":"A","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
    '{"type":"record","name":"A"}',
    '{"type":"record","fields":[]}',
    '{"type":"record","name":"1A","fields":[]}',
    '{"type":"record","name":"A","namespace":"1.b","fields":[]}',
    '{"type":"record","name":"A","fields":[{"name":"a-b","type":"int"}]}',
    '{"type":"enum","name":"E","symbols":["A","A"]}',
    '{"type":"enum","name":"E","symbols":["A-"]}',
    '{"type":"enum","name":"E","symbols":["A","B"],"default":"C"}',
    '{"type":"enum","name":"E","symbols":["A","B"],"default":"B","p":null}',
    '{"type":"fixed","name":"E","size":-1}',
    '{"type":"fixed","name":"E","size":"4"}',
    '["null","null"]',
    '["int",["null"]]',
    "[]",
    '["null",{"type":"array","items":"int"},{"type":"array","items":"string"}]',
    '"A"',
    "{}",
    "[",
    "5",
    "null",
    '{"type":"int"} trailing',
    '{"type":"record","name":"A","fields":[{"name":"r","type":{"type":"record","name":"R","fields":'
    '[{"name":"x","type":"int"}]},"default":{"x":1,"y":2}}]}',
    '{"type":"record","name":"A","fields":[{"name":"r","type":{"type":"record","name":"R","fields":'
    '[{"name":"x","type":"int"}]},"default":{}}]}',
    '{"type":"error","name":"A","fields":[]}',
    '{"type":"record","name":"A","doc":5,"fields":[]}',
    '{"type":"record","name":"A","fields":[],"aliases":"B"}',
    '{"type":"record","name":"int","fields":[]}',
    '{"type":"record","name":"x.int","fields":[{"name":"a","type":["null","x.int"]}]}',
    '{"type":"array","items":{"type":"A"}}',
    '{"type":"record","name":"A","fields":[{"name":"a","type":{"type":"A"}}]}',
    '{"name":"A","type":"record","fields":[],"fields":[{"name":"z","type":"int"}]}',
    "{'type':'string'}",
    '{"type":"record","name":"A","fields":[{"name":"h","type":"double","default":"1.5"},'
    '{"name":"i","type":"double","default":-0.0}]}',
    '{"type":"record","name":"Ü","fields":[]}',
    '{"type":"record","name":"A","fields":[{"name":"f","type":"int","default":2147483648}]}',
    '{"type":"record","name":"A","fields":[{"name":"f","type":"long","default":1e2}]}',
    '{"type":"array"}',
    '{"type":"map"}',
    '["null",{"type":"fixed","name":"F","size":2},{"type":"record","name":"R","fields":[{"name":"f","type":"F"}]}]',
    '[{"type":"fixed","name":"F","size":2},{"type":"array","items":{"type":"fixed","name":"F","size":2}}]',
    '[{"type":"fixed","name":"F","size":2},{"type":"array","items":{"type":"fixed","name":"F","size":3}}]',
]


def ask(lines: list[str]) -> list[str]:
    """Apache Avro's answers."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK")
    jars = [str(jar) for name in JAR_NAMES for jar in JARS.glob(f"{name}*.jar")]
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", ":".join(jars), str(ORACLE)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(lines)
    return answers


def ours(text: str) -> str:
    try:
        return parse(text).text
    except AvroSyntaxError:
        return "refused"


def one_line(schema: object) -> str:
    return json.dumps(schema, ensure_ascii=False)


def test_texts_and_refusals_are_those_of_apache_avro() -> None:
    chance = random.Random(20130101)
    lines = ODD_SCHEMAS + [one_line(SchemaMaker(chance).schema()) for _ in range(SCHEMAS)]
    wrong = [(line, theirs, ours(line)) for line, theirs in zip(lines, ask(lines), strict=True) if theirs != ours(line)]
    assert not wrong, wrong[0]


def test_verdicts_are_those_of_apache_avro() -> None:
    chance = random.Random(42)
    lines = []
    for _ in range(SCHEMAS):
        first = SchemaMaker(chance).schema()
        second = evolved(first, chance) if chance.random() < 0.8 else SchemaMaker(chance).schema()
        lines.append(f"{one_line(first)}\t{one_line(second)}")
    compared = 0
    for line, theirs in zip(lines, ask(lines), strict=True):
        reader, writer = line.split("\t")
        if "refused" in {ours(reader), ours(writer)}:
            assert theirs == "refused"
            continue
        try:
            found = differences(parse(reader).schema, parse(writer).schema)
            said = ["differences", *(f"{each.fault} {each.path} {each.detail}" for each in found)]
        except TooComplexError:
            said = ["refused"]
        # Apache Avro says the same of two types as often as it meets them.
        assert said == list(dict.fromkeys(theirs.rstrip("\t").split("\t"))), line
        compared += 1
    assert compared > SCHEMAS / 2
