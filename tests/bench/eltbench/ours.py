"""
ELTBench as a user of fluvial would do it.

The five tables are loaded into histories, by the same statements as Spark's. The lines of the fact table go to one
more, `history.sales`, and the fact table is an aggregate of it, which `materialize` makes by the full query. What a
merge brings is appended to the history, and `materialize` follows from what came. The query is asked through the door
of `fluvial sql`, so Sail answers it. OPTIMIZE and VACUUM are Delta's own.
"""

from pathlib import Path
from typing import Any

from lakebench.benchmarks.elt_bench.engine_impl.spark import SparkELTBench
from lakebench.engines import Spark

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.query.engine import Answer, Door
from fluvial.spark.session import build_session, run_sql
from fluvial.tables import aggregate, sum_
from fluvial.tables.drive.runner import materialize
from tests.bench.eltbench.dice import Seeds, rows_of
from tests.bench.eltbench.phases import FACT

LINES = "history.sales"
KEY = ["s_store_id", "i_item_id", "c_customer_id", "sale_date"]
MEASURES = {"total_quantity": "BIGINT", "total_net_paid": "DECIMAL(7, 2)", "total_net_profit": "DECIMAL(7, 2)"}
MART = aggregate(LINES, name=FACT, by=KEY, fields={name: sum_(name) for name in MEASURES})
OF_2001 = """
    SELECT s_store_id, i_item_id, c_customer_id, d_date AS sale_date, CAST(ss_quantity AS BIGINT) AS total_quantity,
           ss_net_paid AS total_net_paid, ss_net_profit AS total_net_profit
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk AND d_year = 2001
    JOIN store ON s_store_sk = ss_store_sk
    JOIN item ON i_item_sk = ss_item_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
"""


class Fluvial(Spark):  # type: ignore[misc]
    """A session of fluvial's, and a door for its queries."""

    def __init__(self, folder: Path, memory: str) -> None:
        conf = {"spark.driver.memory": memory}
        self.settings = Settings(warehouse=str(folder / "warehouse"), spark_master="local[*]", spark_conf=conf)
        self.session = build_session(self.settings, "eltbench")
        super().__init__(schema_name="history", schema_uri=str(folder / "warehouse" / "history"))
        self.said: list[str] = []
        self.door = Door(
            settings=self.settings,
            ask_spark=lambda statement: run_sql(self.session, self.settings, statement),
            say=self.said.append,
        )
        self.door.warm_up()

    def path(self, table: str) -> str:
        """Where a table lies."""
        return f"{self.settings.warehouse}/{table.replace('.', '/')}"

    def optimize_table(self, table_name: str) -> None:
        """Delta's own."""
        self.spark.sql(f"OPTIMIZE marts.{table_name}")

    def vacuum_table(self, table_name: str, retain_hours: int = 168, retention_check: bool = True) -> None:
        """Delta's own."""
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", retention_check)
        self.spark.sql(f"VACUUM marts.{table_name} RETAIN {retain_hours} HOURS")


class FluvialELTBench(SparkELTBench):  # type: ignore[misc]
    """The phases that are not LakeBench's own statements."""

    def __init__(self, engine: Fluvial) -> None:
        super().__init__(engine)
        self.np = Seeds()

    def create_total_sales_fact(self) -> None:
        """The history of lines, then the aggregate of it."""
        self._append(self.engine.spark.sql(OF_2001))
        self._follow()

    def merge_percent_into_total_sales_fact(self, percent: float) -> None:
        """What came goes to the history, and the aggregate follows it."""
        rows = rows_of(self.engine.spark, lambda: super(type(self), self).merge_percent_into_total_sales_fact(percent))
        self._append(rows.selectExpr(*KEY, *(f"CAST({name} AS {kind}) AS {name}" for name, kind in MEASURES.items())))
        self._follow()

    def query_total_sales_fact(self) -> None:
        """LakeBench's question."""
        found: list[Any] = []

        def take(answer: Answer) -> None:
            found.extend(answer.rows())

        told = self.engine.door.answer(
            f"SELECT sum(total_net_profit), year(sale_date) FROM marts.{FACT} GROUP BY year(sale_date)",
            take,
            again=found.clear,
        )
        self.engine.said.append(f"the query was answered by {told.engine}, {len(found)} rows")

    def _append(self, rows: Any) -> None:
        rows.write.format("delta").mode("append").save(self.engine.path(LINES))

    def _follow(self) -> None:
        materialize(MART, self.engine.settings, self.engine.session)
        made = newest_made(TableLog(self.engine.session, self.engine.path(MART.table)))
        if made is not None and (refresh := made.stamp.refresh) is not None:
            self.engine.said.append(f"{MART.table} by {refresh.road} ({refresh.reason or f'{refresh.changed:,} rows'})")
