"""
A Delta table that somebody else made, taken over with its rows.

One commit does it. It carries the position from which the topic is read, as every commit of fluvial does, so that runs
find the table as if they had made it; and it adds the columns that fluvial keeps for itself. The rows that are there
count as what the table was at that position: a history leaves them alone, events go on from them in the others.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fluvial.delta.commit import append, commit_once, replace_rows
from fluvial.delta.errors import TableError
from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp
from fluvial.spark.avro import SchemaSource, decode, read_contract
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.kafka import Span, read_span, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import (
    FOLD_COLUMN,
    Compacted,
    Declaration,
    History,
    Pipeline,
    Publication,
    State,
)
from fluvial.tables.declare.folds import Kind
from fluvial.tables.plan.checks import check_state, compacted_key, definition_of
from fluvial.tables.plan.fit import check_fit
from fluvial.tables.plan.log_rows import rows_of_log
from fluvial.tables.plan.result import RunResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings

Start = Literal["earliest", "latest"]

SHOWN_MAX = 5
# Folds whose value says all that came before: the table's is gone on from.
_NEVER_NULL = frozenset({Kind.SUM, Kind.COUNT, Kind.COLLECT_SET})
# Folds that are known by a value and its place in the log.
_PLACED = frozenset({Kind.LATEST, Kind.LAST_NON_NULL, Kind.FIRST})


class AdoptionError(TableError):
    """
    A table that cannot be taken over as it is. Nothing of it was changed.
    """


def adopt(
    declaration: Declaration,
    settings: "Settings",
    spark: "SparkSession",
    *,
    schemas: SchemaSource | None = None,
    start: Start = "earliest",
) -> RunResult:
    """
    Take over the Delta table that stands where `declaration` has its own, and say which rows it has.

    Its rows stand for all that came before `start`: before the first record that the topic still has, or (`latest`)
    before the next one. Raises :class:`AdoptionError` where its columns are not those of the declaration or, of a keyed
    table, where its rows are not one a key; and what :func:`~fluvial.tables.drive.runner.materialize` raises.
    """
    name = declaration.table
    if isinstance(declaration, Pipeline | Publication):
        raise AdoptionError(f"{name} is not made from a topic: only history, compacted and state tables are adopted")
    if isinstance(declaration, State) and declaration.scd2 is not None:
        raise AdoptionError(f"{name} keeps versions of its rows, which only fluvial's tables have: leave scd2 out")
    path = Warehouse.at(settings.warehouse).path(name)
    log = TableLog(spark, path)
    version = log.newest_version()
    if version is None:
        raise AdoptionError(f"{path} holds no Delta table: `fluvial run {name}` makes one from the topic")
    if any(Stamp.of(commit) for commit in log.newest_first()):
        raise AdoptionError(f"{name} is already a table of fluvial: `fluvial run {name}` goes on with it")
    bounds = topic_bounds(settings.cluster, declaration.topic)
    starts = bounds.starts if start == "earliest" else bounds.ends
    stamp = Stamp(
        topic=bounds.topic,
        topic_id=bounds.topic_id,
        batch=1,
        offsets={partition: (offset, offset) for partition, offset in starts.items()},
        definition=definition_of(declaration),
        adopted=dict(starts),
    )
    with explain_failures(name, path), ExitStack() as opened:
        session = opened.enter_context(session_of_its_own(spark))
        contract = read_contract(schemas or opened.enter_context(settings.registry.client()), declaration.topic)
        stamp = replace(stamp, schema=None if contract.point is None else contract.point.as_pair())
        check_fit(declaration, contract)
        if isinstance(declaration, State):
            check_state(declaration, contract, session)
        nothing = read_span(session, settings.cluster, Span(topic=bounds.topic, ranges=stamp.offsets))
        wanted = rows_of_log(declaration, decode(nothing, contract), contract)
        table = session.read.format("delta").option("versionAsOf", str(version)).load(path)
        _check_columns(name, table, wanted, exactly=not isinstance(declaration, History))
        if isinstance(declaration, Compacted | State):
            key = declaration.key if isinstance(declaration, State) else compacted_key(declaration, contract, session)
            _check_keys(name, table, key)
            _check_physical_names(name, session, path)
        rows = table.count()
        remembered = None
        if isinstance(declaration, State):
            _check_values(declaration, table)
            remembered = _remembered(declaration, table, wanted)
        if remembered is not None:
            commit = commit_once(log, stamp, above=version, write=lambda: replace_rows(remembered, path, stamp, "true"))
        else:
            no_rows = session.createDataFrame([], wanted.schema)
            commit = commit_once(log, stamp, above=version, write=lambda: append(no_rows, path, stamp))
    if commit is None:
        raise AdoptionError(f"{name} was written to by another writer meanwhile: stop the writer, and adopt it again")
    return RunResult(
        table=name,
        kind=declaration.kind,
        skipped=False,
        version_before=version,
        version_after=commit.version,
        offsets=stamp.offsets,
        rows=rows,
    )


def _check_columns(name: str, table: "DataFrame", wanted: "DataFrame", *, exactly: bool) -> None:
    """The table must have the declaration's columns; those that fluvial adds, `_offset` and its like, may be absent."""
    found = {field.name: field.dataType.simpleString() for field in table.schema}
    problems = []
    for field in wanted.schema:
        needed = field.dataType.simpleString()
        has = found.pop(field.name, None)
        if has is None and not field.name.startswith("_"):
            problems.append(f"column {field.name} is missing, and must be {needed}")
        elif has is not None and has != needed:
            problems.append(f"column {field.name} is {has}, and must be {needed}")
    if exactly:
        problems += [f"column {column} is {has}, and no event would ever change it" for column, has in found.items()]
    if problems:
        raise AdoptionError(
            f"{name} cannot be adopted: {'; '.join(problems)}: change the table (ALTER TABLE, or a copy with CAST), or "
            "what is declared"
        )


def _check_keys(name: str, table: "DataFrame", key: str) -> None:
    wrong = table.groupBy(key).count().where(f"`{key}` IS NULL OR count > 1").orderBy(key).limit(SHOWN_MAX).collect()
    if wrong:
        shown = ", ".join("no key" if row[key] is None else f"{row[key]!r} in {row['count']}" for row in wrong)
        raise AdoptionError(
            f"{name} cannot be adopted: it must have one row for each {key}, and has {shown}: remove the others first"
        )


def _check_physical_names(name: str, session: "SparkSession", path: str) -> None:
    detail = session.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    mode = "none" if detail is None else detail["properties"].get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise AdoptionError(
            f"{name} cannot be adopted: its files name columns otherwise than the table (delta.columnMapping.mode is "
            f"{mode}), which rows cannot be looked up by: adopt a copy of it"
        )


def _check_values(declaration: State, table: "DataFrame") -> None:
    folds = [name for name, fold in declaration.fields.items() if fold.kind in _NEVER_NULL]
    if not folds:
        return
    nulls = table.selectExpr(*(f"count_if(`{name}` IS NULL) AS `{name}`" for name in folds)).first()
    for name in folds:
        if nulls is not None and nulls[name]:
            fold = declaration.fields[name]
            raise AdoptionError(
                f"{declaration.table} cannot be adopted: column {name} is null in {nulls[name]:,} rows, and {fold} "
                "goes on from a value: put 0, or an empty array, in its place"
            )


def _remembered(declaration: State, table: "DataFrame", wanted: "DataFrame") -> "DataFrame | None":
    """The table's rows with what folds remember beside their values; None where there is nothing to add."""
    if FOLD_COLUMN not in wanted.columns or FOLD_COLUMN in table.columns:
        return None
    memory = wanted.schema[FOLD_COLUMN].dataType
    parts = []
    for part in memory:
        fold = declaration.fields[part.name]
        if fold.kind not in _PLACED:
            raise AdoptionError(
                f"{declaration.table} cannot be adopted: {part.name} = {fold} goes on from more than its value, which "
                f"the table does not tell: leave the field out, or give the table its column {FOLD_COLUMN}"
            )
        # No place comes before all places.
        place = ", ".join(
            f"'{field.name}', CAST(NULL AS {field.dataType.simpleString()})"
            for field in part.dataType["place"].dataType
        )
        value = f"named_struct('place', named_struct({place}), 'value', `{part.name}`)"
        parts.append(f"'{part.name}', CASE WHEN `{part.name}` IS NOT NULL THEN {value} END")
    built = f"CAST(named_struct({', '.join(parts)}) AS {memory.simpleString()}) AS `{FOLD_COLUMN}`"
    return table.selectExpr("*", built)
