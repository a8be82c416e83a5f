"""
MERGE, in the words of SQL: what a session of any kind understands, Spark Connect's without Delta's own client too.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fluvial.delta.commit import stamp_session
from fluvial.delta.stamp import Stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def merge(
    session: "SparkSession", path: str, rows: "DataFrame", stamp: Stamp, *, on: str, clauses: Sequence[str]
) -> None:
    """
    Merge `rows`, called `s`, into the table at `path`, called `t`, in one commit that carries the stamp.

    `session` must be the table's own and the one that `rows` are of: it is stamped, and the rows get a name in it.
    """
    stamp_session(session, stamp)
    source = f"_rows_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(source)
    try:
        session.sql("\n".join([f"MERGE INTO delta.`{path}` AS t USING {source} AS s ON {on}", *clauses])).collect()
    finally:
        session.catalog.dropTempView(source)


def assignments(columns: Mapping[str, str]) -> str:
    """
    What stands after UPDATE SET, for expressions by their columns.
    """
    return ", ".join(f"`{name}` = {expression}" for name, expression in columns.items())


def values(columns: Mapping[str, str]) -> str:
    """
    What stands after INSERT, for expressions by their columns.
    """
    names = ", ".join(f"`{name}`" for name in columns)
    return f"({names}) VALUES ({', '.join(columns.values())})"
