"""
LakeBench's own TPC-DS data, made once for each scale: `python -m tests.bench.eltbench.data SCALE FOLDER`, of the
environment's Python.

Two things of `store_sales` are changed so that every engine must come to the same table. A measure that is null becomes
0: in MERGE null and a number is null, in a sum it is the number. And of the lines that a merge takes, one a key is
left, as MERGE refuses two (an item has several surrogate keys, so that a ticket may name it twice).
"""

import shutil
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.bench.eltbench.phases import MODULO, SEEDS, TABLES

MEASURES = ("ss_quantity", "ss_net_paid", "ss_net_profit")
ROWS_A_STEP = 1 << 20


def main() -> int:
    """Generate and change; a folder that is whole is left alone."""
    from lakebench.datagen import TPCDSDataGenerator

    scale, folder = float(sys.argv[1]), Path(sys.argv[2])
    whole = folder / "WHOLE"
    if whole.exists():
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    TPCDSDataGenerator(scale_factor=scale, target_folder_uri=str(folder), table_list=[*TABLES]).run()
    sales = Sales(folder)
    for path in sorted((folder / "store_sales").glob("*.parquet")):
        sales.change(path)
    print(f"{sales.kept:,} lines, {sales.left_out} left out", file=sys.stderr)
    whole.touch()
    return 0


class Sales:
    """The lines of `store_sales`, file by file."""

    def __init__(self, folder: Path) -> None:
        self._items = _ids(folder / "item", "i_item_sk", "i_item_id")
        self._stores = _ids(folder / "store", "s_store_sk", "s_store_id")
        self._seen: set[tuple[Any, ...]] = set()
        self.kept = self.left_out = 0

    def change(self, path: Path) -> None:
        """Write a file again."""
        import pyarrow.parquet as pq

        changed = path.with_suffix(".changed")
        with pq.ParquetFile(path) as file, pq.ParquetWriter(changed, file.schema_arrow, compression="zstd") as writer:
            for batch in file.iter_batches(batch_size=ROWS_A_STEP):
                writer.write_batch(self._changed(batch), row_group_size=ROWS_A_STEP)
        changed.replace(path)

    def _changed(self, batch: Any) -> Any:
        import pyarrow as pa

        for name in MEASURES:
            at = batch.schema.get_field_index(name)
            column = batch.column(at)
            nothing = pa.scalar(Decimal(0) if pa.types.is_decimal(column.type) else 0, column.type)
            batch = batch.set_column(at, batch.schema.field(at), column.fill_null(nothing))
        twice = set(self._twice(batch))
        self.kept += batch.num_rows - len(twice)
        self.left_out += len(twice)
        return batch.filter(pa.array([at not in twice for at in range(batch.num_rows)])) if twice else batch

    def _twice(self, batch: Any) -> Iterator[int]:
        """The places of lines whose key was there before in the same merge."""
        import numpy as np
        import pyarrow.compute as pc

        columns = ("ss_customer_sk", "ss_sold_date_sk", "ss_item_sk", "ss_store_sk")
        customers, days, items, stores = (pc.fill_null(batch[name], -1).to_numpy() for name in columns)
        there = (customers >= 0) & (days >= 0)
        for seed in SEEDS:
            for at in np.flatnonzero(there & ((customers.astype(np.int64) + days + seed) % MODULO == 0)):
                key = (seed, customers[at], days[at], self._items[items[at]], self._stores.get(stores[at]))
                if key in self._seen:
                    yield int(at)
                self._seen.add(key)


def _ids(folder: Path, number: str, name: str) -> dict[int, str]:
    import pyarrow.parquet as pq

    found: dict[int, str] = {}
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path, columns=[number, name])
        found |= dict(zip(table[number].to_pylist(), table[name].to_pylist(), strict=True))
    return found


if __name__ == "__main__":
    sys.exit(main())
