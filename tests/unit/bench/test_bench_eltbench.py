"""The pure parts of `make bench-eltbench`: what is added up, which lines a merge may take, what is installed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.eltbench.data import Sales
from tests.bench.eltbench.dice import THROWN, Seeds, rows_of, without_dice
from tests.bench.eltbench.environment import OF_LAKEBENCH, ROOT, requirements
from tests.bench.eltbench.phases import SEEDS, TOTAL, Spent, in_turn, medians, rows, summed


class Session:
    """What is asked of it, it gives back."""

    def sql(self, text: str) -> str:
        return text


def test_phases_are_added_up_in_their_order() -> None:
    run = summed([("load", 1.0, 2.0), ("load", 3.0, 4.0), ("merge", 5.0, 6.0)])
    assert run == {"load": Spent(4.0, 6.0), "merge": Spent(5.0, 6.0), TOTAL: Spent(9.0, 12.0)}
    assert [*run] == ["load", "merge", TOTAL]


def test_the_others_are_beside_the_first() -> None:
    ours = medians([{"load": Spent(wall, 1.0)} for wall in (9.0, 2.0, 1.0)])
    assert rows({"a": ours, "b": {"load": Spent(5.0, 2.0)}}) == [["load", "2.00 (1.00)", "5.00 (2.00)", "2.5"]]


def test_each_engine_begins_a_round() -> None:
    assert [in_turn("abc", number) for number in range(4)] == [[*"abc"], [*"bca"], [*"cab"], [*"abc"]]


def test_a_merge_throws_no_dice_and_its_session_is_left_as_it_was() -> None:
    session = Session()
    with without_dice(session):
        assert session.sql("SELECT rand() + 1") == f"SELECT {THROWN} + 1"
    assert session.sql("rand()") == "rand()"
    assert rows_of(session, lambda: session.sql("rand()").beyond()) == THROWN
    assert session.sql("rand()") == "rand()"
    seeds = Seeds()
    assert tuple(seeds.random.randint(1, high=1000) for _ in SEEDS) == SEEDS


def test_a_merge_has_one_line_of_each_key_and_no_measure_is_null(tmp_path: Path) -> None:
    taken = 1000 - SEEDS[0]  # customer and day together, so that the first merge takes the line
    lines = [(1, taken - 1, 7, None), (1, taken - 1, 8, 3), (1, taken, 8, 3), (1, taken - 1, 9, 4), (None, None, 7, 5)]
    columns = ("ss_customer_sk", "ss_sold_date_sk", "ss_item_sk", "ss_quantity")
    by_column = zip(columns, zip(*lines, strict=True), strict=True)
    table = pa.table({name: pa.array(values, pa.int32()) for name, values in by_column})
    table = table.append_column("ss_store_sk", pa.array([1] * len(lines), pa.int32()))
    for name in ("ss_net_paid", "ss_net_profit"):
        table = table.append_column(name, pa.nulls(len(lines), pa.decimal128(7, 2)))
    _write(tmp_path / "item", pa.table({"i_item_sk": [7, 8, 9], "i_item_id": ["a", "a", "b"]}))
    _write(tmp_path / "store", pa.table({"s_store_sk": [1], "s_store_id": ["s"]}))
    path = _write(tmp_path / "store_sales", table)
    sales = Sales(tmp_path)
    sales.change(path)
    changed = pq.read_table(path)
    assert (sales.kept, sales.left_out) == (4, 1)
    assert changed["ss_quantity"].to_pylist() == [0, 3, 4, 5]
    assert changed["ss_net_paid"].null_count == changed["ss_net_profit"].null_count == 0


def test_the_environment_has_the_locked_spark_and_no_other() -> None:
    (spark,) = (each for each in requirements() if each.startswith("pyspark"))
    assert f"\n{spark} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert requirements()[: len(OF_LAKEBENCH)] == [*OF_LAKEBENCH]


def _write(folder: Path, table: pa.Table) -> Path:
    folder.mkdir()
    pq.write_table(table, folder / "one.parquet")
    return folder / "one.parquet"
