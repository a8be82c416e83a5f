"""`fluvial table get` and `table diff`, on tables that the test writes as Delta lays them down."""

import base64
import json
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from fluvial.cli.main import execute
from fluvial.delta.deletion_vectors import PORTABLE_MAGIC
from fluvial.delta.rows import _BASE85, read_rows
from fluvial.delta.snapshot import read_snapshot

Run = Callable[..., Any]
STATE = (
    ("customer", "string"),
    ("orders", "long"),
    ("spent", "decimal(10,2)"),
    ("tags", "array"),
    ("seen", "timestamp"),
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def metadata(columns: Sequence[tuple[str, str]], **configuration: str) -> dict[str, Any]:
    types: dict[str, Any] = {"array": {"type": "array", "elementType": "string", "containsNull": True}}
    fields = [{"name": name, "type": types.get(kind, kind), "nullable": True} for name, kind in columns]
    schema = json.dumps({"type": "struct", "fields": fields})
    return {"metaData": {"schemaString": schema, "partitionColumns": [], "configuration": configuration}}


def data(folder: Path, name: str, **columns: pa.Array) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)
    rows = len(next(iter(columns.values())))
    return {"add": {"path": name, "size": 1, "stats": json.dumps({"numRecords": rows})}}


def marked(added: dict[str, Any], vector: dict[str, Any]) -> dict[str, Any]:
    return {"add": {**added["add"], "deletionVector": vector}}


def stored(rows: Sequence[int]) -> bytes:
    return PORTABLE_MAGIC + bytes(BitMap64(rows).serialize())


def text85(raw: bytes) -> str:
    back = {to: chr(of) for of, to in _BASE85.items()}
    return "".join(back[each] for each in base64.b85encode(raw))


def vector_file(folder: Path, rows: Sequence[int]) -> dict[str, Any]:
    name, body = uuid.uuid4(), stored(rows)
    (folder / "ab").mkdir()
    (folder / "ab" / f"deletion_vector_{name}.bin").write_bytes(b"\x01" + struct.pack(">i", len(body)) + body + b"crcs")
    text = f"ab{text85(name.bytes)}"
    return {"storageType": "u", "pathOrInlineDv": text, "offset": 1, "sizeInBytes": len(body), "cardinality": len(rows)}


def inline_vector(rows: Sequence[int]) -> dict[str, Any]:
    body = stored(rows)
    padded = body + bytes(-len(body) % 4)
    return {"storageType": "i", "pathOrInlineDv": text85(padded), "sizeInBytes": len(body), "cardinality": len(rows)}


def commit(folder: Path, version: int, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    body = [*actions, {"commitInfo": {"operation": "WRITE", "timestamp": 0}}]
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in body))


def customers(folder: Path, name: str, *rows: tuple[Any, ...]) -> dict[str, Any]:
    types = (pa.string(), pa.int64(), pa.decimal128(10, 2), pa.list_(pa.string()), pa.timestamp("us"))
    columns = {
        column: pa.array([row[at] for row in rows], kind)
        for at, ((column, _), kind) in enumerate(zip(STATE, types, strict=True))
    }
    return data(folder, name, **columns)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """state.customers with three versions, a history with one, a state that keeps versions, and a mart."""
    root = tmp_path_factory.mktemp("warehouse")
    folder, seen = root / "state" / "customers", NOON.replace(tzinfo=None)
    ada, bob, cyd = (
        ("ada", 1, Decimal("1.50"), ["x"], seen),
        ("bob", 2, None, [], seen),
        ("cyd", 3, Decimal(3), None, seen),
    )
    first = customers(folder, "a.parquet", ada, bob, cyd)
    commit(folder, 0, metadata(STATE), first)
    again = customers(folder, "b.parquet", ("bob", 5, Decimal(2), ["y"], seen), ("dot", 1, None, None, None))
    commit(folder, 1, {"remove": {"path": "a.parquet"}}, marked(first, vector_file(folder, [1])), again)
    # A column that is new: the files from before lack it.
    last = data(folder, "c.parquet", customer=pa.array(["eve"]), orders=pa.array([9]), note=pa.array(["new"]))
    vector = inline_vector([0, 1])
    commit(
        folder,
        2,
        metadata((*STATE, ("note", "string"))),
        {"remove": {"path": "a.parquet"}},
        marked(first, vector),
        last,
    )
    history = root / "history" / "orders"
    place = {"_partition": pa.array([0, 0, 1], pa.int32()), "_offset": pa.array([0, 1, 0])}
    columns = (("amount", "double"), ("_partition", "integer"), ("_offset", "long"))
    commit(
        history, 0, metadata(columns), data(history, "h.parquet", amount=pa.array([1.0, float("nan"), None]), **place)
    )
    commit(history, 1, {"remove": {"path": "h.parquet"}},
           data(history, "i.parquet", amount=pa.array([1.0, float("nan"), 4.0]), **place))  # fmt: skip
    tiers = root / "state" / "tiers"
    columns = (
        ("customer", "string"), ("tier", "string"), ("valid_from", "timestamp"), ("is_current", "boolean"),
        ("_partition", "integer"), ("_offset", "long"), ("_end_offset", "long"),
    )  # fmt: skip
    versions = data(
        tiers, "v.parquet", customer=pa.array(["ada", "ada"]), tier=pa.array(["gold", "silver"]),
        valid_from=pa.array([seen.replace(hour=13), seen]), is_current=pa.array([True, False]),
        _partition=pa.array([0, 0], pa.int32()), _offset=pa.array([4, 2]), _end_offset=pa.array([None, 4]),
    )  # fmt: skip
    commit(tiers, 0, metadata(columns), versions)
    mart = root / "marts" / "sums"
    commit(mart, 0, metadata((("day", "string"), ("n", "long"))),
           data(mart, "m.parquet", day=pa.array(["mo", "mo"]), n=pa.array([1, 2])))  # fmt: skip
    mapped = root / "marts" / "mapped"
    commit(mapped, 0, metadata((("day", "string"),), **{"delta.columnMapping.mode": "name"}),
           data(mapped, "m.parquet", x=pa.array(["mo"])))  # fmt: skip
    return root


@pytest.fixture
def run(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str, fails: bool = False) -> Any:
        capsys.readouterr()
        form = () if fails else ("--format", "json")
        status = execute(["table", *words, "--warehouse", str(warehouse), *form])
        out, err = capsys.readouterr()
        assert (status != 0) is fails, err
        return err if fails else json.loads(out)

    return run


def test_a_row_is_got_by_its_key(run: Run) -> None:
    (bob,) = run("get", "state.customers", "bob")
    assert bob == {
        "customer": "bob",
        "orders": 5,
        "spent": "2.00",
        "tags": ["y"],
        "seen": "2026-03-01T12:00:00Z",
        "note": None,
    }
    assert [row["note"] for row in run("get", "state.customers", "eve")] == ["new"]
    assert [row["orders"] for row in run("get", "state.customers@0", "bob")] == [2]
    assert [row["amount"] for row in run("get", "history.orders", "1", "0")] == [4.0]
    assert [row["customer"] for row in run("get", "state.customers", "9", "--key", "orders")] == ["eve"]


def test_a_state_with_scd2_gives_all_versions_of_a_key(run: Run) -> None:
    assert [row["tier"] for row in run("get", "state.tiers", "ada")] == ["silver", "gold"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("get", "state.customers", "ada"), "no row of state.customers@2 has customer = ada"),
        (("get", "state.customer", "ada"), "did you mean state.customers"),
        (("get", "state.customers", "a", "b"), "has the key customer: give 1 of KEY, not 2"),
        (("get", "state.customers@9", "a"), "there is no version 9: the newest is 2"),
        (("get", "state.customers@x", "a"), "write a version as a number, as in state.customers@7"),
        (("get", "history.orders", "0", "x"), "KEY 'x': column _offset is int64"),
        (("get", "marts.sums", "mo"), "name the columns that tell its rows apart with --key COLUMN"),
        (("get", "marts.mapped", "mo", "--key", "day"), "which only Spark reads"),
        (("diff", "state.customers", "--key", "costomer"), "did you mean customer?"),
        (("diff", "marts.sums", "marts.sum"), "no table 'marts.sum'"),
    ],
)
def test_what_cannot_be_got_is_told(run: Run, words: tuple[str, ...], says: str) -> None:
    line = run(*words, fails=True)
    assert says in line, line


def test_two_versions_of_a_table_are_compared_by_key(run: Run) -> None:
    found = run("diff", "state.customers@0", "state.customers@1")
    assert (found["added"], found["removed"], found["changed"], found["key"]) == (1, 0, 1, ["customer"])
    added, changed = found["rows"]
    assert (added["change"], added["key"], added["after"]["orders"]) == ("added", {"customer": "dot"}, 1)
    assert changed["before"] == {"orders": 2, "spent": None, "tags": []}
    assert changed["after"] == {"orders": 5, "spent": "2.00", "tags": ["y"]}


def test_a_table_alone_is_compared_with_the_version_before(run: Run) -> None:
    found = run("diff", "state.customers")
    assert (found["before"], found["after"]) == ("state.customers@1", "state.customers@2")
    assert [(each["change"], each["key"]["customer"]) for each in found["rows"]] == [
        ("added", "eve"),
        ("removed", "ada"),
    ]
    assert found["columns_added"] == ["note"]
    assert [each["key"] for each in run("diff", "state.customers@0", "--limit", "1")["rows"]] == [
        {"customer": "dot"}, {"customer": "ada"}, {"customer": "bob"},
    ]  # fmt: skip


def test_what_is_no_number_is_not_another_than_before(run: Run) -> None:
    found = run("diff", "history.orders")
    assert [each["key"] for each in found["rows"]] == [{"_partition": 1, "_offset": 0}]
    assert found["rows"][0]["before"] == {"amount": None}


def test_two_tables_are_compared(run: Run, capsys: pytest.CaptureFixture[str], warehouse: Path) -> None:
    found = run("diff", "state.tiers", "state.customers", "--key", "customer", fails=True)
    assert "state.tiers@0: several rows have customer = ada" in found
    assert execute(["table", "diff", "state.customers@1", "state.customers", "--warehouse", str(warehouse)]) == 0
    drawn = capsys.readouterr().out
    assert "state.customers@1 to state.customers@2: 1 rows added, 1 removed, 0 changed" in drawn
    assert "columns added: note" in drawn
    assert execute(["table", "diff", "history.orders", "--warehouse", str(warehouse)]) == 0
    assert re.search("changed . 1 +. 0 +. amount . - +. 4.0", capsys.readouterr().out)


def test_rows_that_deletion_vectors_mark_are_gone(warehouse: Path) -> None:
    path = str(warehouse / "state" / "customers")
    snapshot = read_snapshot(path, 1)
    assert snapshot is not None
    rows = read_rows(path, snapshot, snapshot.added)
    assert sorted(rows["customer"].to_pylist()) == ["ada", "bob", "cyd", "dot"]
    assert len(rows) == snapshot.rows
