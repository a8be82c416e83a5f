"""
Why a pipeline's table can only be written whole, as far as its log tells.
"""

from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import Made, MartStamp
from fluvial.spark.connect import is_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def obstacle(
    session: "SparkSession", log: TableLog, made: Made | None, before: int | None, wanted: MartStamp
) -> str | None:
    """
    Why the full query must bring the table, at version `before` and last `made`, to `wanted`; None where changes may
    do. No changes of the inputs are looked at.
    """
    if made is None:
        return "the table is new" if before is None else "no pipeline made the table"
    stamp = made.stamp
    reasons = {
        "it was made from other inputs": stamp.pipeline != wanted.pipeline
        or stamp.inputs.keys() != wanted.inputs.keys(),
        "the code has changed": stamp.code != wanted.code,
        "the key is declared in another way": stamp.key != wanted.key,
        "a client of Spark Connect cannot read which rows changed": is_client(session),
    }
    for commit in log.newest_first(above=made.commit.version):
        is_foreign = bool(log.data_changes(commit.version) & {"add", "remove"})
        reasons[f"version {commit.version} of the table is not fluvial's ({commit.operation})"] = is_foreign
    return next((reason for reason, holds in reasons.items() if holds), None)


def have_vectors(session: "SparkSession", log: TableLog, before: int) -> int:
    """
    Have a table at version `before` that was made without them take deletion vectors; its version then.
    """
    name = "delta.enableDeletionVectors"
    found = session.sql(f"SHOW TBLPROPERTIES delta.`{log.path}` ('{name}')").collect()
    if found and found[0]["value"] == "true":
        return before
    session.sql(f"ALTER TABLE delta.`{log.path}` SET TBLPROPERTIES ('{name}' = 'true')")
    return log.newest_version() or before
