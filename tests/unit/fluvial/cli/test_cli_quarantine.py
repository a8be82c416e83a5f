"""Records in quarantine through the command line: seen, repaired, replayed once."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fluvial_command import Cli

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "tail", "type": "string"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "dest", "type": ["null", "string"]},
    ],
}


def framed(schema_id: int, **values: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(FLIGHT), values)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def sent(platform: Cli, topic: str, values: dict[bytes, bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{platform.port}", "enable.idempotence": True, "linger.ms": 50}
    )
    failures: list[Any] = []
    for number, (key, value) in enumerate(values.items()):
        producer.produce(
            topic,
            value,
            key,
            partition=number % 2,
            timestamp=1_000 + number,
            headers=[("own", key)],
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    producer.flush(60)
    assert failures == []


@pytest.fixture(scope="module")
def schema_id(platform: Cli) -> int:
    (platform.cwd / "flight.avsc").write_text(json.dumps(FLIGHT))
    return int(platform.ok("schema", "register", "flight.avsc", "--subject", "flights-value").split()[-1])


def topic_of(platform: Cli, name: str) -> str:
    configs = ("fluvial.value.schema.validation=payload", "fluvial.schema.violation=quarantine")
    platform.ok("topic", "create", name, "--partitions", "2", "--config", configs[0], "--config", configs[1])
    platform.ok("schema", "register", "flight.avsc", "--subject", f"{name}-value")
    return name


def records_of(platform: Cli, topic: str) -> list[dict[str, Any]]:
    printed = platform.ok("topic", "consume", topic, "--from-beginning", "--to-end", "--format", "json")
    return [json.loads(line) for line in printed.splitlines()]


def waiting(platform: Cli, topic: str) -> dict[str, Any]:
    rows = json.loads(platform.ok("topic", "quarantine", "list", "--json"))
    return next(row for row in rows if row["topic"] == topic)


def test_bad_records_are_shown_repaired_and_replayed_once(platform: Cli, schema_id: int) -> None:
    topic = topic_of(platform, "flights")
    good = framed(schema_id, tail="N1", day=15_706, dest="EWR")
    sent(platform, topic, {b"a": good, b"b": good[:-3], b"c": good, b"d": good[:-4], b"e": b"plain", b"f": good})
    listed = waiting(platform, topic)
    assert (listed["records"], listed["waiting"]) == (3, 3)
    assert any("field dest: the bytes end early" in reason for reason in listed["reasons"])
    assert "flights" in platform.ok("topic", "quarantine", "list")

    rows = [json.loads(line) for line in platform.ok("topic", "quarantine", "show", topic, "--json").splitlines()]
    assert [
        (row["key"], row["partition"], row["offset"], row["field"]) for row in sorted(rows, key=lambda r: r["key"])
    ] == [
        ("b", 1, 0, "dest"),
        ("d", 1, 1, "dest"),
        ("e", 0, 2, ""),
    ]
    broken = next(row for row in rows if row["key"] == "b")
    assert broken["value"] == {"tail": "N1", "day": "2013-01-01"}
    assert broken["producer_sequence"] == 0
    shown = platform.ok("topic", "quarantine", "show", topic)
    assert "flights-1@0  key b" in shown
    assert 'what can be read: {"tail": "N1", "day": "2013-01-01"}' in shown

    refused = platform.refused("topic", "quarantine", "replay", topic)
    assert "is still bad" in refused
    assert "--set, --file or --call" in refused
    (platform.cwd / "repaired.jsonl").write_text(
        "".join(
            json.dumps({**row, "value": {"tail": row["key"], "day": "2013-01-01", "dest": None}}) + "\n" for row in rows
        )
    )
    tried = platform.ok("topic", "quarantine", "replay", topic, "--file", "repaired.jsonl", "--dry-run")
    assert "3 records would be appended to flights" in tried
    assert waiting(platform, topic)["waiting"] == 3
    for count in (3, 0):
        assert f"{count} records appended" in platform.ok(
            "topic", "quarantine", "replay", topic, "--file", "repaired.jsonl"
        )
    assert (waiting(platform, topic)["waiting"], waiting(platform, topic)["records"]) == (0, 3)
    found = records_of(platform, topic)
    replayed = {each["key"]: each for each in found if each["key"] in "bde"}
    assert len(found) == 6
    assert [key for key in (each["key"] for each in found if each["partition"] == 1) if key in "bd"] == ["b", "d"]
    assert replayed["b"]["value"] == {"tail": "b", "day": "2013-01-01", "dest": None}
    assert replayed["b"]["timestamp"].startswith("1970-01-01T00:00:01.001")
    assert [(each["name"], each["value"]) for each in replayed["b"]["headers"]] == [
        ("own", "b"),
        ("fluvial.replayed.from", "flights-1@0"),
    ]
    assert "--all" not in platform.ok("topic", "quarantine", "show", topic, "--all", "-n", "1")


def test_ways_of_repairing(platform: Cli, schema_id: int) -> None:
    topic = topic_of(platform, "ways")
    good = framed(schema_id, tail="N2", day=15_706, dest="EWR")
    sent(platform, topic, {b"a": good[:-3]})
    assert "1 records appended" in platform.ok("topic", "quarantine", "replay", topic, "--set", "dest=LGA")
    sent(platform, topic, {b"b": good[:-3], b"c": b"junk", b"d": good[:-3]})
    assert "the repaired value" in platform.refused("topic", "quarantine", "replay", topic, "--set", "day=soon")
    (platform.cwd / "repairs.py").write_text(
        "def repair(record):\n"
        "    if record['key'] == b'c':\n"
        "        return None\n"
        "    return {**record['value'], 'dest': record['key'].decode()}\n"
    )
    said = platform.ok("topic", "quarantine", "replay", topic, "--call", "repairs:repair")
    assert "2 records appended to ways, 1 dropped, 0 left out" in said
    sent(platform, topic, {b"x": b"junk"})
    assert "1 left out" in platform.ok("topic", "quarantine", "replay", topic, "--leave-out")
    assert "0 left out" in platform.ok("topic", "quarantine", "replay", topic, "--leave-out")
    assert {each["key"]: each["value"]["dest"] for each in records_of(platform, topic)} == {
        "a": "LGA",
        "b": "b",
        "d": "d",
    }


def test_what_decodes_by_now_goes_back_as_it_is(platform: Cli, schema_id: int) -> None:
    topic = topic_of(platform, "late")
    more = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "note", "type": "string", "default": ""}]}
    (platform.cwd / "more.avsc").write_text(json.dumps(more))
    newer = int(platform.ok("schema", "register", "more.avsc", "--subject", "elsewhere-value").split()[-1])
    value = framed(newer, tail="N3", day=15_706, dest=None) + b"\2x"
    sent(platform, topic, {b"a": value})
    assert "elsewhere-value, not under late-value" in next(iter(waiting(platform, topic)["reasons"]))
    platform.ok("schema", "register", "more.avsc", "--subject", "late-value")
    assert "1 records appended" in platform.ok("topic", "quarantine", "replay", topic)
    assert [each["value"]["note"] for each in records_of(platform, topic)] == ["x"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("show", "flight"), "no topic 'flight'"),
        (("replay", "flights", "--set", "dest"), "write KEY=VALUE"),
        (("replay", "flights", "--set", "a=1", "--call", "m:f"), "give one of them"),
        (("replay", "flights", "--file", "none.jsonl"), "none.jsonl"),
        (("replay", "flights", "--file", "flight.avsc"), "flight.avsc line 1: no repaired record"),
        (("replay", "flights", "--call", "nothing:there"), "nothing:there"),
        (("replay", "flights", "--call", "json"), "module:function"),
    ],
)
def test_mistakes_are_told_in_a_line(platform: Cli, schema_id: int, words: tuple[str, ...], says: str) -> None:
    assert says in platform.refused("topic", "quarantine", *words)


def test_a_topic_without_quarantine(platform: Cli, tmp_path: Path) -> None:
    platform.ok("topic", "create", "clean")
    assert platform.ok("topic", "quarantine", "show", "clean") == ""
