"""The list of erased keys as a run reads it: by topic, number and key; and what a stamp says of it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fluvial.delta.erasures import Erasure, Erasures, digest_of, read_erasures
from fluvial.delta.errors import TableError
from fluvial.delta.log import Commit
from fluvial.delta.stamp import Stamp

ADA, BOB = digest_of(b"ada"), digest_of(b"bob")
FIRST = Erasure(
    number=1, topic="people", topic_id="t", digest=ADA, before={0: 5, 1: 7}, ended=(1,), asked_ms=1_700_000_000_000
)
LATER = replace(FIRST, number=3, before={0: 9, 1: 12}, ended=())
OTHER = replace(FIRST, number=2, digest=BOB, before={0: 6})
KNOWN = Erasures(known=(FIRST, OTHER, LATER))


def test_a_key_is_covered_as_its_last_erasure_says() -> None:
    assert KNOWN.places() == {ADA: {0: 9, 1: 12}, BOB: {0: 6}}
    assert KNOWN.until(2).places() == {ADA: {0: 5, 1: 7}, BOB: {0: 6}}
    assert (KNOWN.newest, Erasures().newest) == (3, 0)
    assert KNOWN.of(ADA) == LATER
    assert KNOWN.until(2).of(ADA) == FIRST
    assert KNOWN.of(digest_of(b"cid")) is None


def test_a_table_has_to_catch_up_with_what_came_after_its_stamp() -> None:
    assert KNOWN.after(1).known == (OTHER, LATER)
    assert not KNOWN.after(3)
    assert KNOWN.after(0).last_of_each() == [LATER, OTHER]


def test_a_key_is_listed_by_what_spark_makes_of_it_too() -> None:
    assert digest_of("zoë".encode()) == hashlib.sha256("zoë".encode()).hexdigest()


def test_a_stamp_says_of_which_erasures_its_table_holds_no_row() -> None:
    stamp = Stamp(topic="people", topic_id="t", batch=4, offsets={0: (1, 2)}, erased=3)
    body = json.loads(stamp.as_json())
    commit = Commit(version=0, operation="WRITE", user_metadata=body, metrics={}, txn_id=None)
    assert Stamp.of(commit) == stamp
    assert "erased" not in json.loads(replace(stamp, erased=0).as_json())["fluvial"]


def test_a_warehouse_without_a_list_has_erased_nothing(tmp_path: Path) -> None:
    assert not read_erasures(None, str(tmp_path), "people", "t")


def test_a_list_is_read_without_spark_and_again_when_it_has_changed(tmp_path: Path) -> None:
    write(tmp_path, 0, [row(1, ADA)])
    assert [each.number for each in read_erasures(None, str(tmp_path), "people", "t").known] == [1]
    # Of an earlier topic of the name, and of another topic.
    write(tmp_path, 1, [row(2, BOB, topic_id="former"), row(3, BOB, topic="pets"), row(4, BOB)])
    assert [each.number for each in read_erasures(None, str(tmp_path), "people", "t").known] == [1, 4]
    # A cluster that gives topics no ids.
    assert [each.number for each in read_erasures(None, str(tmp_path), "people", None).known] == [1, 2, 4]
    write(tmp_path, 2, [row(5, ADA) | {"before": "of a newer fluvial"}])
    with pytest.raises(TableError, match=r"the list of erased keys, has an entry .* upgrade this one"):
        read_erasures(None, str(tmp_path), "people", "t")


def row(number: int, digest: str, *, topic: str = "people", topic_id: str = "t") -> dict[str, object]:
    return {
        "number": number,
        "topic": topic,
        "topic_id": topic_id,
        "digest": digest,
        "before": '{"0": 5}',
        "ended": "[]",
        "asked_ms": 0,
    }


def write(warehouse: Path, version: int, rows: list[dict[str, object]]) -> None:
    """Add rows to the list as Delta lays them down."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = warehouse / "_erased"
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{version}.parquet")
    types = {name: "long" if isinstance(value, int) else "string" for name, value in rows[0].items()}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    actions = [
        {"commitInfo": {"operation": "WRITE", "txnId": f"of {version}"}},
        {"metaData": {"schemaString": schema, "partitionColumns": [], "configuration": {}}},
        {"add": {"path": f"{version}.parquet", "size": 1, "partitionValues": {}, "dataChange": True}},
    ]
    lines = "".join(f"{json.dumps(action)}\n" for action in actions if version == 0 or "metaData" not in action)
    (folder / "_delta_log" / f"{version:020d}.json").write_text(lines)
