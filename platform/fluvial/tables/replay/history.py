"""
A range of a history made again from the log, in one commit in the place of the rows that stand there.

What the table holds beside the range, and how far it has read, stays as it is: a range may be made again while other
runs go on, as often as one likes, and the same records leave the same rows. So a range of time can be run by itself,
in any order: what lies below it in the log comes into the table first, and what the table had of it is made again.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, commit_once, replace_rows
from fluvial.delta.erasures import read_erasures
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, Range, Stamp, offsets_predicate, read_position
from fluvial.spark.avro import SchemaSource, decode, read_contract
from fluvial.spark.connect import parallelism
from fluvial.spark.kafka import Span, read_span, topic_bounds
from fluvial.spark.offset_times import Window, cut_topic
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import History
from fluvial.tables.drive.erase_table import erase_pending
from fluvial.tables.drive.evolve import contract_of
from fluvial.tables.drive.runner import Progress, materialize
from fluvial.tables.plan import frames
from fluvial.tables.plan.duplicates import first_of_each
from fluvial.tables.plan.guards import Care
from fluvial.tables.plan.result import RunResult
from fluvial.tables.replay.stretch import rewriting_stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings


def materialize_window(
    declaration: History,
    settings: "Settings",
    spark: "SparkSession",
    window: Window,
    *,
    schemas: SchemaSource | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """
    Have the table hold what the log holds of a stretch of time, made again as far as it was there already.

    Raises a :class:`~fluvial.errors.FluvialError` with one clear line, as
    :func:`~fluvial.tables.drive.runner.materialize`.
    """
    log = TableLog(spark, Warehouse.at(settings.warehouse).path(declaration.table))
    before = read_position(log, declaration.table).ends
    cuts = cut_topic(settings.cluster, declaration.topic, [window.start_ms, window.end_ms])
    ranges = cuts.between(0, 1)
    with ExitStack() as opened:
        known = schemas or opened.enter_context(settings.registry.client())
        ends = {partition: end for partition, (_, end) in ranges.items()}
        result = materialize(declaration, settings, spark, schemas=known, progress=progress, until=ends)
        repeated = {
            partition: (start, min(end, before.get(partition, start)))
            for partition, (start, end) in ranges.items()
            if start < min(end, before.get(partition, start))
        }
        if repeated:
            again = rewrite(declaration, settings, spark, repeated, schemas=known, progress=progress)
            result = replace(
                result,
                skipped=False,
                version_after=again.version_after,
                rows=result.rows + again.rows,
                bytes=result.bytes + again.bytes,
                seconds=result.seconds + again.seconds,
            )
    return replace(result, offsets=ranges)


def rewrite(
    declaration: History,
    settings: "Settings",
    spark: "SparkSession",
    ranges: Mapping[int, Range],
    *,
    schemas: SchemaSource | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """
    Put the records of `ranges`, decoded as they are now, in the place of the rows that the table has of them.

    Of a range only what the table has read and the log still holds is made again; rows whose records are gone from the
    log are never taken away. Raises :class:`~fluvial.delta.errors.TableError` where the table would lose a row.
    """
    with explain_failures(declaration.table, Warehouse.at(settings.warehouse).path(declaration.table)):
        return _rewrite(declaration, settings, spark, ranges, schemas=schemas, progress=progress)


def _rewrite(
    declaration: History,
    settings: "Settings",
    spark: "SparkSession",
    ranges: Mapping[int, Range],
    *,
    schemas: SchemaSource | None,
    progress: Progress | None,
) -> RunResult:
    say = progress or (lambda _line: None)
    root = Warehouse.at(settings.warehouse).root
    path = Warehouse(root).path(declaration.table)
    log = TableLog(spark, path)
    with ExitStack() as opened:
        newest = read_contract(schemas or opened.enter_context(settings.registry.client()), declaration.topic)
    for _ in range(ATTEMPTS_MAX):
        position = read_position(log, declaration.table)
        bounds = topic_bounds(settings.cluster, declaration.topic)
        erasures = read_erasures(spark, root, bounds.topic, bounds.topic_id)
        if erase_pending(spark, log, position, erasures, root=root, key="_key", is_state=False) is not None:
            continue
        stamp = rewriting_stamp(declaration.table, position, bounds, ranges)
        if not stamp.rewritten:
            return _nothing(declaration, position)
        contract = contract_of(newest, stamp)
        span = Span(topic=declaration.topic, ranges=stamp.rewritten, skipped=stamp.skipped, erased=erasures.places())
        say(f"{declaration.table}: making {span.records_max:,} records of {span.topic} again")
        decoded = decode(read_span(spark, settings.cluster, span), contract)
        rows = frames.history_rows(decoded, contract, Care(undecodable=True))
        where = offsets_predicate(stamp.rewritten)
        table = spark.read.format("delta").option("versionAsOf", str(position.version)).load(path)
        rows = first_of_each(rows, declaration, table.where(f"NOT ({where})"))
        rows = rows.coalesce(span.tasks(parallelism(spark))).persist()
        try:
            _refuse_loss(declaration, table.where(where), rows)
            count = rows.count()
            commit = commit_once(log, stamp, above=position.version, write=_writer(rows, path, stamp, where))
        finally:
            rows.unpersist()
        if commit is not None:
            return RunResult(
                table=declaration.table,
                kind=declaration.kind,
                skipped=False,
                version_before=position.version,
                version_after=commit.version,
                offsets=stamp.rewritten,
                # Delta counts the rows beside the range that it had to write again as well.
                rows=count,
                bytes=commit.metric("numOutputBytes"),
            )
        say(f"{declaration.table}: another run was first; planning again")
    raise OvertakenError(declaration.table, ATTEMPTS_MAX)


def _writer(rows: "DataFrame", path: str, stamp: Stamp, where: str) -> Callable[[], None]:
    return lambda: replace_rows(rows, path, stamp, where)


def _refuse_loss(declaration: History, table: "DataFrame", rows: "DataFrame") -> None:
    """A topic that is compacted holds less than its history, and a contract may no longer decode what it did."""
    lost = table.join(rows.select("_partition", "_offset"), ["_partition", "_offset"], "left_anti")
    first = lost.orderBy("_partition", "_offset").select("_partition", "_offset").first()
    if first is not None:
        raise TableError(
            f"{declaration.table} has rows whose records {declaration.topic} no longer holds, or that no longer decode "
            f"({lost.count():,}, the first at partition {first[0]}, offset {first[1]}): it is left as it was"
        )


def _nothing(declaration: History, position: Position) -> RunResult:
    return RunResult(
        table=declaration.table,
        kind=declaration.kind,
        skipped=True,
        version_before=position.version,
        version_after=position.version,
    )
