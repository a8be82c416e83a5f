"""Rows by key beside a plain dict, over histories drawn by dice: commits, deletion vectors, compaction, VACUUM."""

import random
import shutil
import threading
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyed_history import KeyedHistory, Row, customers, go_on

from fluvial.delta import key_index
from fluvial.serve import data_file
from fluvial.serve.errors import NoColumnError, NoKeyError, NoTableError, NoVersionError, SeveralRowsError
from fluvial.serve.table import View
from fluvial.serve.warehouse import ServedWarehouse

NAMES = ["ada", "bob", "cyd", "", "a/b", "ẞ", "dot", "eve", "k\x1fl", "x" * 300]


def row(customer: str, number: int) -> Row:
    return {"customer": customer, "orders": number, "spent": Decimal(number) / 4, "_fold": "{}"}


def shown(found: Row | None) -> Row | None:
    return None if found is None else {name: value for name, value in found.items() if name != "_fold"}


def assert_is(view: View, history: KeyedHistory, keys: Sequence[Any]) -> None:
    held = history.versions[view.version]
    assert view.get_all([view.key.of_value(key) for key in keys]) == [shown(held.get(key)) for key in keys]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), copies=st.booleans(), collide=st.booleans())
def test_rows_are_those_of_a_dict_at_every_version(
    seed: int, copies: bool, collide: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = random.Random(seed)
    folder = tmp_path_factory.mktemp("history")
    history = customers(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_file, "BATCH_ROWS", 2)
        if collide:
            whole = key_index.Digests.of
            patch.setattr(data_file.Digests, "of", lambda keys: _few(whole(keys)))
        warehouse = ServedWarehouse(str(folder), copied_bytes_max=1 << 20 if copies else 0)
        held = []
        for _ in range(dice.randint(1, 12)):
            go_on(history, dice, NAMES, row)
            if dice.random() < 0.6:
                table = warehouse.table("state.customers")
                assert table.newest().version == history.newest
                held.append(table.newest())
        for view in held:
            assert_is(view, history, NAMES)
        table = warehouse.table("state.customers")
        for version in range(len(history.versions)):
            assert_is(table.at(version), history, NAMES)
        # A process that comes later finds what was kept, and reads the same of it.
        again = ServedWarehouse(str(folder), copied_bytes_max=1 << 20).table("state.customers")
        assert_is(again.newest(), history, NAMES)
        history.vacuum()
        assert_is(ServedWarehouse(str(folder)).table("state.customers").newest(), history, NAMES)
    shutil.rmtree(folder)


def _few(digests: Any) -> Any:
    """All digests are one of two, so that nearly every look-up meets other keys."""
    digests.high[:] &= 1
    return digests


def test_a_version_that_is_held_outlives_its_files(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row(name, 1) for name in NAMES])
    table = ServedWarehouse(str(tmp_path)).table("state.customers")
    before = table.newest()
    history.put([row("ada", 2)], gone=["bob"])
    history.compact()
    history.vacuum()
    assert table.newest().version == 2
    assert_is(before, history, NAMES)
    assert_is(table.newest(), history, NAMES)
    with pytest.raises(NoVersionError, match="is missing"):
        ServedWarehouse(str(tmp_path), kept_in=tmp_path / "empty").table("state.customers").at(0)
    with pytest.raises(NoVersionError, match="no version 7: the newest is 2"):
        table.at(7)


def test_answers_are_each_of_one_version_while_a_writer_commits(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row(name, 0) for name in NAMES])
    table = ServedWarehouse(str(tmp_path)).table("state.customers")
    ended, seen, wrong = threading.Event(), set[int](), list[Any]()

    def read() -> None:
        dice = random.Random(7)
        while not ended.is_set():
            view = table.newest()
            found = view.get_all([(key,) for key in dice.sample(NAMES, 5)])
            numbers = {each["orders"] for each in found if each is not None}
            seen.add(view.version)
            # Every commit has its own number in all rows: what mixes two versions is seen.
            if numbers != {history.versions[view.version]["ada"]["orders"]}:
                wrong.append((view.version, numbers))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 40):
            if number % 8 == 0:
                history.compact()
            history.put([row(name, number) for name in NAMES])
            while len(seen) <= number // 15 and not wrong:  # on a busy machine readers are slow
                time.sleep(0.01)
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert not wrong
    assert len(seen) > 2
    assert table.newest().version == history.newest


def test_a_table_that_was_made_again_is_read_again(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row("ada", 1)])
    history.put([row("bob", 2)])
    table = ServedWarehouse(str(tmp_path)).table("state.customers")
    before = table.newest()
    shutil.rmtree(history.folder)
    again = customers(tmp_path)
    again.put([row("cyd", 1)])
    again.put([row("dot", 2)])
    assert table.is_behind()
    view = table.newest()
    assert_is(view, again, NAMES)
    assert view.version == before.version
    assert view.tag != before.tag


def test_what_was_kept_and_is_damaged_is_made_again(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row(name, 1) for name in NAMES])
    ServedWarehouse(str(tmp_path)).table("state.customers").newest()
    kept = sorted((tmp_path / ".serve" / "state.customers").iterdir())
    assert [each.suffix for each in kept] == [".keys", ".rows"]
    for damaged in kept:
        whole = damaged.read_bytes()
        for torn in (b"", whole[:7], whole[:-1], b"\0" * len(whole), whole + b"x"):
            damaged.write_bytes(torn)
            assert_is(ServedWarehouse(str(tmp_path)).table("state.customers").newest(), history, NAMES)


def test_a_folder_that_cannot_be_written_costs_memory_and_no_row(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row(name, 1) for name in NAMES], row_group=3)
    (tmp_path / "file").write_text("no folder")
    table = ServedWarehouse(str(tmp_path), kept_in=tmp_path / "file").table("state.customers")
    assert_is(table.newest(), history, NAMES)


def test_tables_and_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    history = customers(tmp_path)
    history.put([row("ada", 1)])
    warehouse = ServedWarehouse(str(tmp_path))
    with pytest.raises(NoTableError, match=r"no table 'state\.orders': there are state\.customers"):
        warehouse.table("state.orders")
    for name in ("../../etc", "state.customers/../customers", "state/customers", "", "state.customers\0"):
        with pytest.raises(NoTableError):
            warehouse.table(name)
    view = warehouse.table("state.customers").newest()
    with pytest.raises(NoColumnError, match="it has customer, orders, spent, _fold"):
        view.get(("ada",), ["nothing"])
    assert view.get(("ada",), ["_fold", "orders"]) == {"_fold": "{}", "orders": 1}


def test_a_mart_is_looked_up_by_the_columns_that_are_named(tmp_path: Path) -> None:
    columns = {"city": pa.string(), "day": pa.date32(), "n": pa.int64()}
    history = KeyedHistory(tmp_path / "marts" / "days", columns, ["city", "day"])
    dates = pa.array([19_000, 19_001], pa.date32()).to_pylist()
    rows = [{"city": city, "day": day, "n": at} for at, (city, day) in enumerate([("A", dates[0]), ("A", dates[1])])]
    history.put(rows)
    with pytest.raises(NoKeyError, match=r"--key marts\.days=COLUMN"):
        ServedWarehouse(str(tmp_path)).table("marts.days").newest()
    named = ServedWarehouse(str(tmp_path), keys={"marts.days": ["city", "day"]}).table("marts.days").newest()
    assert named.get(named.key.of_words(["A", str(dates[1])])) == rows[1]
    vague = ServedWarehouse(str(tmp_path), keys={"marts.days": ["city"]}).table("marts.days").newest()
    with pytest.raises(SeveralRowsError, match=r"several rows of marts\.days have city = A"):
        vague.get(("A",))


def test_of_a_state_with_former_rows_the_current_one_is_found(tmp_path: Path) -> None:
    instant = pa.timestamp("us", "UTC")
    columns = {
        "id": pa.string(), "n": pa.int64(), "valid_from": instant, "is_current": pa.bool_(), "_end_offset": pa.int64(),
        "_partition": pa.int32(), "_offset": pa.int64(),
    }  # fmt: skip
    history = KeyedHistory(tmp_path / "state" / "prices", columns, ["id", "n"])
    rows = [
        {"id": "a", "n": n, "valid_from": None, "is_current": n == 3, "_end_offset": n, "_partition": 0, "_offset": n}
        for n in range(4)
    ]
    history.put(rows)
    view = ServedWarehouse(str(tmp_path)).table("state.prices").newest()
    found = view.get(("a",))
    assert found is not None
    assert found["n"] == 3
    assert view.get(("b",)) is None


def test_a_row_of_a_history_is_found_by_its_place_in_the_log(tmp_path: Path) -> None:
    columns = {"_partition": pa.int32(), "_offset": pa.int64(), "order_id": pa.string()}
    history = KeyedHistory(tmp_path / "history" / "orders", columns, ["_partition", "_offset"])
    for batch in range(3):
        offsets = range(100 * batch, 100 * batch + 100)
        history.put([{"_partition": at % 2, "_offset": at, "order_id": f"o{at}"} for at in offsets], row_group=30)
    view = ServedWarehouse(str(tmp_path)).table("history.orders").newest()
    for at in (0, 99, 100, 257):
        assert view.get(view.key.of_path([str(at % 2), str(at)])) == {
            "_partition": at % 2, "_offset": at, "order_id": f"o{at}"
        }  # fmt: skip
    assert view.get((1, 0)) is None
    assert view.get((0, 300)) is None
