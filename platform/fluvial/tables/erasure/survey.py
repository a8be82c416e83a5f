"""
What a warehouse and a topic hold of one key, before anything of it is erased.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluvial.delta.erasures import Erasure, digest_of, read_erasures
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.delta.stamp import Position, Stamp, read_position
from fluvial.quality.failing_rows import kept_table
from fluvial.spark.avro import SchemaSource, read_contract
from fluvial.spark.kafka import TopicBounds, topic_bounds
from fluvial.spark.warehouse import Warehouse, table_name_of
from fluvial.tables.declare.declarations import Compacted, Declaration, History, Pipeline, Publication, State
from fluvial.tables.drive.erase_table import key_column, key_of
from fluvial.tables.erasure.key_in_log import Keeping, KeyInLog, find_key, keeping_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings

# The order in which rows leave the tables of a topic.
_ORDER = ("history", "compacted", "state", "quarantine")


class EraseError(TableError):
    """
    A key cannot be erased as things stand; nothing has been changed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """
    A table that is made from the topic: the column of the record's key, where it stands, and the rows of the key.

    `new_rows` are those among them that no erasure covers which the table has got.
    """

    name: str
    key: str
    position: Position
    rows: int
    new_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """
    What there is of a key: in the log, in the tables of its topic, and what stands behind these.

    `failed` are the tables of rows that a check put aside, `behind` the pipelines and publications to be brought up to
    date, inputs first. `undeclared` are marts made from the tables which nobody declares any more. `earlier` is the
    last erasure of the key, if it has been erased before.
    """

    topic: str
    digest: str
    bounds: TopicBounds
    keeping: Keeping
    in_log: KeyInLog
    tables: tuple[TopicTable, ...]
    failed: tuple[str, ...]
    behind: tuple[Pipeline | Publication, ...]
    undeclared: tuple[str, ...]
    earlier: Erasure | None

    @property
    def goes_on(self) -> Erasure | None:
        """
        The earlier erasure, where nothing has come of the key since: it is gone on with, or found to be complete.
        """
        if self.earlier is None:
            return None
        before = self.earlier.before
        came = any(last.offset >= before.get(partition, 0) for partition, last in self.in_log.last.items())
        return None if came or any(table.new_rows for table in self.tables) else self.earlier

    @property
    def marts(self) -> tuple[Pipeline, ...]:
        """
        The pipelines among what stands behind the tables.
        """
        return tuple(each for each in self.behind if isinstance(each, Pipeline))


def topic_of(name: str, declared: Mapping[str, Declaration]) -> str:
    """
    The topic that is meant by a table that is made from it, or by its own name.

    Raises :class:`EraseError` for a table that is made from other tables.
    """
    declaration = declared.get(name)
    if isinstance(declaration, Pipeline):
        raise EraseError(
            f"{name} is made from {', '.join(declaration.inputs)}: erase the key of a topic, by its name or by a table "
            "that is made from it, and the tables behind it follow"
        )
    if declaration is None:
        return name
    return declaration.topic


def survey(
    topic: str,
    key: bytes,
    declared: Mapping[str, Declaration],
    settings: "Settings",
    spark: "SparkSession",
    *,
    schemas: SchemaSource,
    say: Callable[[str], None],
) -> Survey:
    """
    Look where a key is. Raises :class:`EraseError` where it could not be erased everywhere.
    """
    warehouse, digest = Warehouse.at(settings.warehouse), digest_of(key)
    bounds = topic_bounds(settings.cluster, topic)
    say(f"{topic}: looking for the key in {sum(bounds.ends.values()) - sum(bounds.starts.values()):,} records")
    in_log = find_key(spark, settings.cluster, bounds, key)
    names = warehouse.tables(spark)
    looking = _Looking(settings=settings, spark=spark, schemas=schemas, declared=declared, bounds=bounds, digest=digest)
    tables = tuple(filter(None, map(looking.table, sorted(names, key=_in_order))))
    erased = {each.name for each in tables}
    behind = _behind(declared, erased)
    _refuse_pinned(behind, erased)
    known = {*erased, *(each.table for each in behind)}
    failed = tuple(name for name in map(kept_table, sorted(known)) if name in names)
    return Survey(
        topic=topic,
        digest=digest,
        bounds=bounds,
        keeping=keeping_of(settings.cluster, topic),
        in_log=in_log,
        tables=tables,
        failed=failed,
        behind=behind,
        undeclared=tuple(_undeclared(warehouse, spark, names, declared, known)),
        earlier=read_erasures(spark, warehouse.root, topic, bounds.topic_id).of(digest),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looking:
    settings: "Settings"
    spark: "SparkSession"
    schemas: SchemaSource
    declared: Mapping[str, Declaration]
    bounds: TopicBounds
    digest: str

    def table(self, name: str) -> TopicTable | None:
        """The table of this name, if it is made from the topic."""
        if name.partition(".")[0] not in _ORDER:
            return None
        warehouse = Warehouse.at(self.settings.warehouse)
        log = TableLog(self.spark, warehouse.path(name))
        topic = self.bounds.topic
        stamp = next(filter(None, map(Stamp.of, log.whole_commits())), None)
        if stamp is None or stamp.topic != topic:
            if name == f"quarantine.{table_name_of(topic)}" and stamp is None:
                raise EraseError(f"{name} holds a table that no run of fluvial wrote: move it away, and erase again")
            return None
        position = read_position(log, name)
        if stamp.topic_id and self.bounds.topic_id and stamp.topic_id != self.bounds.topic_id:
            raise EraseError(
                f"{name} was made from an earlier topic {topic}, whose records nobody can look at any more: rebuild it "
                f"(`fluvial run --rebuild {name}`) or move it away, and erase again"
            )
        rows = self.spark.read.format("delta").option("versionAsOf", str(position.version)).load(log.path)
        key = self._key(name, rows)
        found = rows.where(f"sha2(CAST(`{key}` AS BINARY), 256) = '{self.digest}'")
        count = found.count()
        earlier = read_erasures(self.spark, warehouse.root, topic, self.bounds.topic_id).of(self.digest)
        has = earlier is not None and position.stamp is not None and position.stamp.erased >= earlier.number
        # What a table that has an erasure still holds of its key came after it.
        return TopicTable(name=name, key=key, position=position, rows=count, new_rows=count if has else 0)

    def _key(self, name: str, rows: "DataFrame") -> str:
        declaration = self.declared.get(name)
        if isinstance(declaration, History | Compacted | State):
            return key_column(declaration, read_contract(self.schemas, declaration.topic), self.spark)
        return key_of(rows)


def _in_order(name: str) -> tuple[int, str]:
    database = name.partition(".")[0]
    return (_ORDER.index(database) if database in _ORDER else len(_ORDER), name)


def _behind(declared: Mapping[str, Declaration], erased: set[str]) -> tuple[Pipeline | Publication, ...]:
    changed, behind = set(erased), []
    for declaration in declared.values():
        if isinstance(declaration, Pipeline | Publication) and not changed.isdisjoint(declaration.inputs):
            changed.add(declaration.table)
            behind.append(declaration)
    return tuple(behind)


def _refuse_pinned(behind: tuple[Pipeline | Publication, ...], erased: set[str]) -> None:
    changed = {*erased, *(each.table for each in behind)}
    for each in behind:
        for table, version in each.pinned.items() if isinstance(each, Pipeline) else ():
            if table in changed:
                raise EraseError(
                    f"{each.table} reads {table} at version {version}, to which it is pinned and which would keep the "
                    "key: leave the pin out, erase the key, and pin the version that the erasure has made"
                )


def _undeclared(
    warehouse: Warehouse,
    spark: "SparkSession",
    names: list[str],
    declared: Mapping[str, Declaration],
    known: set[str],
) -> list[str]:
    found = []
    for name in names:
        if name.startswith("marts.") and name not in declared:
            made = newest_made(TableLog(spark, warehouse.path(name)))
            if made is not None and not known.isdisjoint(made.stamp.inputs):
                found.append(name)
    return found
