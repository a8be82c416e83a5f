"""
Records that no table of keys has a place for, put into the quarantine table of their topic: without the key that their
contract names, or with one that is no text.

The table is shared with the records that do not decode, and by all tables of the topic. Its position says how far it
has those that do not decode, and stays where it is: what is there of the others is looked up by partition and offset.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, append, commit_once
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, Stamp, read_position
from fluvial.spark.kafka import Span, TopicBounds
from fluvial.spark.session import register_table
from fluvial.spark.warehouse import Warehouse, table_name_of
from fluvial.tables.plan.frames import keyless_rows
from fluvial.tables.plan.guards import Guard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = ["_partition", "_offset"]


def quarantine_keyless(
    decoded: "DataFrame",
    guard: Guard | None,
    span: Span,
    bounds: TopicBounds,
    *,
    warehouse: Warehouse,
    say: Callable[[str], None],
) -> int:
    """
    Put those of the `decoded` records of `span` aside at which the guard stops; returns how many were not there yet.
    """
    if guard is None:
        return 0
    spark = decoded.sparkSession
    table = f"quarantine.{table_name_of(span.topic)}"
    path = warehouse.path(table)
    log = TableLog(spark, path)
    say(f"{table}: putting aside the records of {span.topic} with {guard}")
    for _ in range(ATTEMPTS_MAX):
        position = read_position(log, table)
        stamp = _stamp(position, span, bounds, table, path)
        rows = _lacking(spark, keyless_rows(decoded, guard), position, path).coalesce(1)
        if rows.isEmpty():
            return 0
        commit = commit_once(log, stamp, above=position.version, write=lambda: append(rows, path, stamp))  # noqa: B023
        if commit is not None:
            if position.version is None:
                register_table(spark, table, path)
            return commit.metric("numOutputRows")
    raise OvertakenError(table, ATTEMPTS_MAX)


def _lacking(spark: "SparkSession", rows: "DataFrame", position: Position, path: str) -> "DataFrame":
    """The rows that the quarantine table does not have."""
    if position.version is None:
        return rows
    known = spark.read.format("delta").option("versionAsOf", position.version).load(path).select(*_PLACE)
    return rows.join(known, _PLACE, "left_anti").select(*rows.columns)


def _stamp(position: Position, span: Span, bounds: TopicBounds, table: str, path: str) -> Stamp:
    known = position.stamp
    if known is not None and known.topic_id and bounds.topic_id and known.topic_id != bounds.topic_id:
        raise TableError(f"{table} holds records of an earlier topic of that name: move {path} away and run again")
    starts = {partition: start for partition, (start, _) in span.ranges.items()}
    return Stamp(
        topic=span.topic,
        topic_id=bounds.topic_id,
        batch=1 if known is None else known.batch + 1,
        offsets={partition: (at, at) for partition, at in (position.ends or starts).items()},
        erased=0 if known is None else known.erased,
    )
