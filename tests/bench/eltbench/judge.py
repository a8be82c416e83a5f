"""
Whether fact tables are alike, row by row: `python -m tests.bench.eltbench.judge TABLE OTHER…`, of the environment's
Python. A plain Spark reads them.
"""

import sys
from typing import Any

from tests.bench.eltbench.run import plain_session

# Spark pads texts to the CHAR(16) of TPC-DS's columns, Sail has no such type.
COLUMNS = (
    "rtrim(s_store_id) AS s_store_id",
    "rtrim(i_item_id) AS i_item_id",
    "rtrim(c_customer_id) AS c_customer_id",
    "sale_date",
    "CAST(total_quantity AS BIGINT) AS total_quantity",
    "CAST(total_net_paid AS DECIMAL(17, 2)) AS total_net_paid",
    "CAST(total_net_profit AS DECIMAL(17, 2)) AS total_net_profit",
)
SHOWN = 3


def main() -> int:
    """Compare each with the first; the status says whether all are alike."""
    memory, *paths = sys.argv[1:]
    spark = plain_session(memory)
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    first, *others = ((path, spark.read.format("delta").load(path).selectExpr(*COLUMNS)) for path in paths)
    rows, quantity, paid = first[1].selectExpr("count(*)", "sum(total_quantity)", "sum(total_net_paid)").first()
    print(f"{rows:,} rows, {quantity:,} pieces for {paid:,}")
    found = [line for path, table in others for line in _differences(first, (path, table))]
    print("\n".join(found), file=sys.stderr)
    return 1 if found or not rows else 0


def _differences(first: tuple[str, Any], other: tuple[str, Any]) -> list[str]:
    found = []
    for (here, table), (there, counterpart) in ((first, other), (other, first)):
        missing = table.exceptAll(counterpart).take(SHOWN)
        found += [f"{here} has {row}, and {there} does not" for row in missing]
    return found


if __name__ == "__main__":
    sys.exit(main())
