"""
Proof that a table is what the log says: the log is read again up to the table's own position, and compared.

A history is compared by partition and range of offsets, by the number of its rows and a checksum in which every row
goes in with its offset: a row that is missing, doubled, altered or out of its place shows. A keyed table is folded
again from the beginning of the log and compared row by row; sums of floating-point numbers may differ in their last
digits, as they were added in another order. Columns that the contract got after the table's last run are left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, offsets_predicate, read_position
from fluvial.kafka import KafkaCluster
from fluvial.spark.avro import Contract, SchemaSource, read_contract
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.kafka import topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import (
    FOLD_COLUMN,
    Compacted,
    History,
    Pipeline,
    Publication,
    State,
)
from fluvial.tables.declare.folds import FLOATING
from fluvial.tables.drive.evolve import contract_of
from fluvial.tables.drive.records_held import records_held
from fluvial.tables.inspect.verify_pipeline import verify_pipeline
from fluvial.tables.plan.checks import compacted_key
from fluvial.tables.plan.duplicates import first_of_each
from fluvial.tables.plan.log_rows import rows_of_log
from fluvial.tables.plan.reducer_plan import ReducerError
from fluvial.tables.publishing.changes import KEY
from fluvial.tables.publishing.run import PublicationRun
from fluvial.tables.publishing.table import DeltaSource
from fluvial.tables.refresh.comparison import SHOWN_MAX, Difference, NotBuiltError, Verdict, comparable, same_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings
    from fluvial.tables.declare.declarations import Declaration

OFFSETS_A_RANGE = 100_000


def verify(
    declaration: "Declaration", settings: "Settings", spark: "SparkSession", *, schemas: SchemaSource
) -> Verdict:
    """
    Compare a table with the log, a pipeline's with the batch query, or a topic with the table published to it.

    Raises :class:`~fluvial.delta.errors.TableError` when the log no longer holds enough, or the table cannot be read.
    """
    warehouse = Warehouse.at(settings.warehouse)
    path = warehouse.path(declaration.table)
    with explain_failures(declaration.table, path):
        if isinstance(declaration, Pipeline):
            return verify_pipeline(declaration, warehouse, spark)
        if isinstance(declaration, Publication):
            return _verify_publication(declaration, settings, spark, schemas)
        return _verify_table(declaration, settings, spark, schemas, path)


def _verify_table(
    declaration: History | Compacted | State,
    settings: "Settings",
    spark: "SparkSession",
    schemas: SchemaSource,
    path: str,
) -> Verdict:
    position = read_position(TableLog(spark, path), declaration.table)
    if position.version is None:
        raise NotBuiltError(f"{declaration.table} does not exist: run it first (`fluvial run {declaration.table}`)")
    ranges = _ranges(declaration, position, settings.cluster)
    assert position.stamp is not None, "a table that is there has a stamp"
    contract = contract_of(read_contract(schemas, declaration.topic), position.stamp)
    with session_of_its_own(spark) as session:
        table = session.read.format("delta").option("versionAsOf", position.version).load(path)
        decoded = records_held(session, settings, contract, position.stamp, ranges)
        try:
            rows, different, shown = _compared(declaration, decoded, table, ranges, contract)
        except Exception as error:
            reducer_error = ReducerError.from_cause(error, declaration.table)
            if reducer_error is None:
                raise
            raise reducer_error from error
    return Verdict(
        table=declaration.table,
        version=position.version,
        ranges=ranges,
        rows=rows,
        different=different,
        differences=tuple(shown),
    )


def _verify_publication(
    declaration: Publication, settings: "Settings", spark: "SparkSession", schemas: SchemaSource
) -> Verdict:
    """Compare the latest record of each key with the rows of the version that was published last."""
    source = DeltaSource(declaration=declaration, settings=settings, spark=spark, schemas=schemas)
    version, bounds = PublicationRun(declaration=declaration, settings=settings, source=source).published()
    changed = source.compared(version, bounds).persist()
    try:
        different = changed.count()
        shown = changed.orderBy(KEY).limit(SHOWN_MAX).collect() if different else ()
    finally:
        changed.unpersist()
    return Verdict(
        table=declaration.table,
        version=version.number,
        ranges={partition: (bounds.starts[partition], end) for partition, end in bounds.ends.items()},
        rows=source.at(version).count(),
        different=different,
        differences=tuple(
            Difference(
                where=f"{declaration.key} {row[KEY]}",
                what="is missing"
                if row.before is None
                else "is not in the table"
                if row.after is None
                else "has other values",
            )
            for row in shown
        ),
    )


def _compared(
    declaration: History | Compacted | State,
    decoded: "DataFrame",
    table: "DataFrame",
    ranges: dict[int, tuple[int, int]],
    contract: Contract,
) -> tuple[int, int, list[Difference]]:
    log = rows_of_log(declaration, decoded, contract)
    match declaration:
        case History():
            inside = offsets_predicate(ranges)
            # Where the log no longer has its first records, the table has their ids.
            has_all = not any(start for start, _ in ranges.values())
            log = first_of_each(log, declaration, None if has_all else table.where(f"NOT ({inside})"))
            return _by_range(log, table.where(inside))
        case Compacted():
            return _by_key(log, table, [compacted_key(declaration, contract, decoded.sparkSession)], frozenset())
        case State():
            log = log.drop(FOLD_COLUMN)
            keys = [declaration.key] if declaration.scd2 is None else [declaration.key, "_partition", "_offset"]
            loose = frozenset(name for name, fold in declaration.fields.items() if fold.kind in FLOATING)
            return _by_key(log, table.drop(FOLD_COLUMN), keys, loose)


def _ranges(
    declaration: History | Compacted | State, position: Position, cluster: KafkaCluster
) -> dict[int, tuple[int, int]]:
    """The offsets to compare by: what the table has read and the log still holds."""
    stamp, bounds = position.stamp, topic_bounds(cluster, declaration.topic)
    assert stamp is not None, "a table that is there has a stamp"
    if stamp.topic_id and bounds.topic_id and stamp.topic_id != bounds.topic_id:
        raise TableError(f"topic {bounds.topic} was deleted and recreated since {declaration.table} was built from it")
    if stamp.adopted and not isinstance(declaration, History):
        raise TableError(
            f"{declaration.table} was adopted with rows that are not of {bounds.topic}, which its rows now come of as "
            "well: only a history can be verified then, from where it was adopted"
        )
    ranges = {}
    for partition, end in position.ends.items():
        start = max(bounds.starts.get(partition, 0), stamp.adopted.get(partition, 0))
        if start > 0 and not isinstance(declaration, History):
            raise TableError(
                f"{declaration.table} was folded from the beginning of {bounds.topic}, and its partition "
                f"{partition} begins at offset {start} by now: only a history can still be verified, from there on"
            )
        ranges[partition] = (min(start, end), end)
    return ranges


def _by_range(log: "DataFrame", table: "DataFrame") -> tuple[int, int, list[Difference]]:
    columns = [name for name in log.columns if name in table.columns]
    expected, found = (_checksums(frame.select(*columns)) for frame in (log, table))
    different = []
    for place in sorted(expected.keys() | found.keys()):
        wanted, had = expected.get(place, (0, 0)), found.get(place, (0, 0))
        if wanted != had:
            start = place[1] * OFFSETS_A_RANGE
            what = f"{had[0]:,} rows for {wanted[0]:,} records" if wanted[0] != had[0] else "other content"
            different.append(
                Difference(where=f"partition {place[0]}, offsets {start} to {start + OFFSETS_A_RANGE - 1}", what=what)
            )
    return sum(rows for rows, _ in expected.values()), len(different), different[:SHOWN_MAX]


def _checksums(rows: "DataFrame") -> dict[tuple[int, int], tuple[int, int]]:
    """(rows, checksum) of each (partition, range of offsets)."""
    from pyspark.sql.functions import expr

    columns = ", ".join(comparable(rows, name) for name in rows.columns)
    grouped = (
        rows.selectExpr("_partition", f"_offset DIV {OFFSETS_A_RANGE} AS _range", f"xxhash64({columns}) AS _hash")
        .groupBy("_partition", "_range")
        # In 38 digits no sum of 64-bit numbers overflows; unlike an exclusive or, it sees a row that is there twice.
        .agg(expr("count(*)"), expr("sum(CAST(_hash AS DECIMAL(38, 0)))"))
    )
    return {(row[0], row[1]): (row[2], int(row[3])) for row in grouped.collect()}


def _by_key(
    log: "DataFrame", table: "DataFrame", keys: Sequence[str], loose: frozenset[str]
) -> tuple[int, int, list[Difference]]:
    from pyspark.sql.functions import expr

    columns = [name for name in log.columns if name in table.columns and name not in keys]
    floating = {field.name for field in log.schema if field.dataType.simpleString() in {"double", "float"}} & loose
    same = " AND ".join(
        same_value(*(comparable(log, name, of) for of in ("l.", "t.")), close=name in floating) for name in columns
    )
    key = f"`{keys[0]}`"
    verdict = (
        f"CASE WHEN t.{key} IS NULL THEN 'is missing' WHEN l.{key} IS NULL THEN 'is not in the log' "
        f"WHEN NOT ({same or 'true'}) THEN 'has other values' END"
    )
    places = ", ".join(f"' {name} ', coalesce(l.`{name}`, t.`{name}`)" for name in keys)
    compared = (
        log.alias("l")
        .join(table.alias("t"), expr(" AND ".join(f"l.`{name}` = t.`{name}`" for name in keys)), "full_outer")
        .selectExpr(f"ltrim(concat({places})) AS _where", f"{verdict} AS _what", f"l.{key} IS NOT NULL AS _known")
        .persist()
    )
    try:
        rows = compared.where("_known").count()
        wrong = compared.where("_what IS NOT NULL")
        different = wrong.count()
        shown: Sequence[Any] = wrong.orderBy("_where").limit(SHOWN_MAX).collect() if different else ()
    finally:
        compared.unpersist()
    return rows, different, [Difference(where=row._where, what=row._what) for row in shown]
