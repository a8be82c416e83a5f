"""
Tables that hold other rows than they should, by commits that say nothing of it.

The commit carries the stamp that the table has, so that to every run the table is as fluvial left it.
"""

import json
from typing import Any

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import new_run_id
from fluvial.spark.warehouse import Warehouse

OFF = 1000


def rows_of(spark: Any, settings: Settings, table: str, *, where: str = "true") -> list[tuple[str, ...]]:
    """All rows as texts, in order."""
    found = spark.read.format("delta").load(Warehouse.at(settings.warehouse).path(table)).where(where).collect()
    return sorted(tuple(map(str, row)) for row in found)


def own_stamp(spark: Any, path: str) -> str:
    """The stamp that the table has, of another run."""
    stamps = (commit.user_metadata or {} for commit in TableLog(spark, path).newest_first())
    stamp = next(each for each in stamps if "fluvial" in each)
    return json.dumps({"fluvial": {**stamp["fluvial"], "run": new_run_id()}})


def add_off(spark: Any, settings: Settings, table: str, column: str) -> None:
    """Have a number of every row be off by OFF."""
    path = Warehouse.at(settings.warehouse).path(table)
    own = spark.newSession()
    own.conf.set("spark.databricks.delta.commitInfo.userMetadata", own_stamp(spark, path))
    # A commit with a stamp has a number of Delta's too.
    own.conf.set("spark.databricks.delta.write.txnAppId", f"damage/{new_run_id()}")
    own.conf.set("spark.databricks.delta.write.txnVersion", "1")
    own.sql(f"UPDATE delta.`{path}` SET {column} = {column} + {OFF}")


def damage(spark: Any, settings: Settings, table: str, column: str, *, key: str, ghost: str | None) -> None:
    """As :func:`add_off`, and lose a third of all keys, and get rows of a key that has none."""
    add_off(spark, settings, table, column)
    path = Warehouse.at(settings.warehouse).path(table)
    rows = spark.read.format("delta").load(path)
    wrong = rows.where(f"pmod(hash({key}), 3) <> 0")
    if ghost is not None:
        names = (f"'{ghost}' AS `{name}`" if name == key else f"`{name}`" for name in rows.columns)
        wrong = wrong.unionByName(rows.orderBy(key).limit(2).selectExpr(*names))
    number = {"txnAppId": f"damage/{new_run_id()}", "txnVersion": "1"}
    writer = wrong.write.format("delta").mode("overwrite").options(**number)
    writer.option("userMetadata", own_stamp(spark, path)).save(path)
