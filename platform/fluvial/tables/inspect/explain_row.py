"""
Why a row is as it is: the records of its key in their order, what each made of the row, and the commit that took it.

The records are read where they are found whole: in the topic's history if that has read as far as the table has,
otherwise in the log. What each field was after a record comes from the plan that makes the table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp, offsets_predicate, read_position
from fluvial.spark.avro import Contract, SchemaSource, read_contract
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.kafka import topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.drive.evolve import contract_of
from fluvial.tables.drive.records_held import records_held
from fluvial.tables.plan import frames
from fluvial.tables.plan.changes import state_steps
from fluvial.tables.plan.checks import compacted_key
from fluvial.tables.plan.guards import EVERYTHING
from fluvial.tables.refresh.comparison import NotBuiltError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """
    The commit that took a record: the table's version, its time in milliseconds of Unix time, and the run.
    """

    version: int
    made_ms: int | None
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    A record, and the row that the table had of its key after it: None where it had none.

    `fields` are the record's own, None of a tombstone; `timestamp` is its time in the log, and `schema` the version of
    the contract that it was written with, None where that is not known.
    """

    partition: int
    offset: int
    timestamp: Any
    schema: int | None
    fields: Mapping[str, Any] | None
    row: Mapping[str, Any] | None
    taken: Taken | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """
    A record of the key that is in no table, and why.
    """

    partition: int
    offset: int
    timestamp: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStory:
    """
    What made a row of `table`, oldest first; `source` says where the records were read.

    `left_out` is how many earlier ones there are. `begins` are the first offsets of partitions of which earlier records
    are gone; `types` are Spark's names of the types of columns.
    """

    table: str
    key: str
    version: int
    source: str
    contract: str
    steps: Sequence[Step]
    left_out: int
    aside: Sequence[Aside]
    begins: Mapping[int, int]
    types: Mapping[str, str]


def explain_row(
    declaration: History | Compacted | State,
    key: str,
    settings: "Settings",
    spark: "SparkSession",
    *,
    schemas: SchemaSource,
    until: Mapping[int, int] | None = None,
    limit: int = 1_000,
) -> RowStory:
    """
    Tell what made the row of a record key, from the newest `limit` records up to the table's position.

    `until` ends it earlier: of a partition, the last offset that counts. Raises
    :class:`~fluvial.delta.errors.TableError` for a table that cannot be read or is not there yet.
    """
    warehouse = Warehouse.at(settings.warehouse)
    path = warehouse.path(declaration.table)
    with explain_failures(declaration.table, path), session_of_its_own(spark) as session:
        log = TableLog(spark, path)
        position = read_position(log, declaration.table)
        if position.version is None or position.stamp is None:
            raise NotBuiltError(f"{declaration.table} does not exist: run it first (`fluvial run {declaration.table}`)")
        contract = contract_of(read_contract(schemas, declaration.topic), position.stamp)
        ends = {number: min(end, (until or {}).get(number, end) + 1) for number, end in position.ends.items()}
        source, events, begins = _events(session, settings, _Part(declaration, position.stamp, contract, ends))
        of_key = events.where(_is_key(key))
        steps = _steps(of_key, declaration, contract).persist()
        try:
            number = steps.count()
            newest = steps.orderBy("_partition", "_offset", ascending=False).limit(limit).collect()
        finally:
            steps.unpersist()
        taken = _taken(log, [(row["_partition"], row["_offset"]) for row in newest])
        versions = {each.id: each.version for each in contract.versions}
        return RowStory(
            table=declaration.table,
            key=key,
            version=position.version,
            source=source,
            contract=contract.subject,
            steps=[_step(row, versions, taken) for row in reversed(newest)],
            left_out=number - len(newest),
            aside=_aside(session, warehouse, declaration.topic, key, ends),
            begins=begins,
            types=_types(steps),
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """The records below `ends` that a table holds."""

    declaration: History | Compacted | State
    stamp: Stamp
    contract: Contract
    ends: Mapping[int, int]


def _events(session: "SparkSession", settings: "Settings", part: _Part) -> "tuple[str, DataFrame, Mapping[int, int]]":
    """Where the events are read, the events up to the table's position, and where partitions begin later than at 0."""
    warehouse, declaration, stamp = Warehouse.at(settings.warehouse), part.declaration, part.stamp
    contract, ends = part.contract, part.ends
    bounds = topic_bounds(settings.cluster, declaration.topic)
    begins = {number: start for number, start in bounds.starts.items() if start > 0 and number in ends}
    history = declaration.table if isinstance(declaration, History) else None
    if history is None and begins:
        history = _history_of(warehouse, stamp, ends)
    if history is not None:
        rows = session.read.format("delta").load(warehouse.path(history)).where(_until(ends))
        missing = [name for name in contract.field_names if name not in rows.columns]
        if not missing:
            fields = (f"`{name}`" for name in contract.field_names)
            # What has a value has the id of its schema.
            keyed = ("CAST(_key AS STRING) AS _entity", "_schema_id IS NULL AS _tombstone")
            return history, rows.selectExpr(*fields, *frames.META_COLUMNS, *keyed), {}
    ranges = {number: (min(bounds.starts.get(number, 0), end), end) for number, end in ends.items()}
    decoded = records_held(session, settings, contract, stamp, ranges)
    return f"topic {declaration.topic}", frames.keyed_events(decoded, contract, EVERYTHING), begins


def _history_of(warehouse: Warehouse, stamp: Stamp, ends: Mapping[int, int]) -> str | None:
    """The history of the topic that has all records up to these ends."""
    for name in warehouse.tables():
        if name.startswith("history."):
            found = read_position(TableLog(None, warehouse.path(name)), name)
            same = found.stamp is not None and (found.stamp.topic, found.stamp.topic_id) == (
                stamp.topic,
                stamp.topic_id,
            )
            if same and all(found.ends.get(number, 0) >= end for number, end in ends.items()):
                return name
    return None


def _steps(events: "DataFrame", declaration: History | Compacted | State, contract: Contract) -> "DataFrame":
    """Each event as `_event`, and the row after it as `_row`, null where there is none."""
    event = _struct(contract.field_names)
    told = ("_partition", "_offset", "_timestamp", "_schema_id", "_tombstone", f"{event} AS _event")
    match declaration:
        case History():
            row = event
        case Compacted():
            key = compacted_key(declaration, contract, events.sparkSession)
            row = _struct([key, *(name for name in contract.field_names if name != key)], key=key)
        case State():
            columns = _struct((declaration.key, *declaration.columns))
            states = state_steps(events, declaration).selectExpr(
                "_partition", "_offset", f"CASE WHEN _alive THEN {columns} END AS _row"
            )
            return events.selectExpr(*told).join(states, ["_partition", "_offset"])
    return events.selectExpr(*told, f"CASE WHEN NOT _tombstone THEN {row} END AS _row")


def _struct(names: Iterable[str], *, key: str | None = None) -> str:
    """A struct of these columns; that of `key` is the entity."""
    fields = (f"'{name}', {'_entity' if name == key else f'`{name}`'}" for name in names)
    return f"named_struct({', '.join(fields)})"


def _step(row: Any, versions: Mapping[int, int], taken: Mapping[Place, Taken]) -> Step:
    return Step(
        partition=row["_partition"],
        offset=row["_offset"],
        timestamp=row["_timestamp"],
        schema=versions.get(row["_schema_id"]),
        fields=None if row["_tombstone"] else dict(zip(row["_event"].__fields__, row["_event"], strict=True)),
        row=None if row["_row"] is None else dict(zip(row["_row"].__fields__, row["_row"], strict=True)),
        taken=taken.get((row["_partition"], row["_offset"])),
    )


def _taken(log: TableLog, places: Sequence[Place]) -> dict[Place, Taken]:
    """The commits that took these records: the first that read them, and not one that made their rows again."""
    found: dict[Place, Taken] = {}
    for version, made_ms, stamp in _stamps(log):
        if len(found) == len(places):
            break
        for partition, offset in places:
            start, end = stamp.offsets.get(partition, (0, 0))
            if start <= offset < end:
                found[partition, offset] = Taken(version=version, made_ms=made_ms, run=stamp.run)
    return found


def _stamps(log: TableLog) -> Iterator[tuple[int, int | None, Stamp]]:
    for commit in log.newest_first():
        stamp = Stamp.of(commit)
        if stamp is not None:
            yield commit.version, commit.timestamp_ms, stamp


def _aside(session: "SparkSession", warehouse: Warehouse, topic: str, key: str, ends: Mapping[int, int]) -> list[Aside]:
    table = f"quarantine.{topic}"
    if table not in warehouse.tables():
        return []
    rows = session.read.format("delta").load(warehouse.path(table)).where(_is_key(key)).where(_until(ends))
    columns = ("_partition", "_offset", "_timestamp", "_reason")
    return [
        Aside(partition=row[0], offset=row[1], timestamp=row[2], reason=row[3])
        for row in rows.select(*columns).orderBy("_partition", "_offset").collect()
    ]


def _is_key(key: str) -> str:
    return f"_key = X'{key.encode().hex()}'"


def _until(ends: Mapping[int, int]) -> str:
    return offsets_predicate({number: (0, end) for number, end in ends.items()})


def _types(steps: "DataFrame") -> dict[str, str]:
    shapes = (steps.schema[name].dataType for name in ("_event", "_row"))
    return {field.name: field.dataType.simpleString() for shape in shapes for field in shape.fields}
