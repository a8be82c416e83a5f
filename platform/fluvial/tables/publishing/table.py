"""
A Delta table as a publication reads it, through Spark.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.spark.avro import SchemaSource
from fluvial.spark.kafka import TopicBounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Publication
from fluvial.tables.publishing import changes
from fluvial.tables.publishing.avro_schema import published_columns, value_schema
from fluvial.tables.publishing.planning import Step, lost_version
from fluvial.tables.publishing.progress import Version
from fluvial.tables.publishing.transactions import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings


@runtime_checkable
class SchemaRegistry(SchemaSource, Protocol):
    """
    Where schemas are registered; the registry's client is one.
    """

    def register(self, subject: str, schema: str) -> int:
        """
        Register a schema and return its id; one that is already registered keeps its id.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSource:
    """The table of a publication: which versions there are, and what changed between them."""

    declaration: Publication
    settings: "Settings"
    spark: "SparkSession"
    schemas: SchemaSource

    @property
    def log(self) -> TableLog:
        """The table's own log."""
        return TableLog(self.spark, Warehouse.at(self.settings.warehouse).path(self.declaration.source))

    def newest(self) -> Version:
        """The newest version. Raises TableError where there is no table."""
        self.log.check()
        number = self.log.newest_version()
        if number is None:
            raise TableError(
                f"{self.declaration.table} publishes {self.declaration.source}, which does not exist: run it first "
                f"(`fluvial run {self.declaration.source}`)"
            )
        return Version(number=number, commit=self.log.commit(number).txn_id)

    def commit_of(self, number: int) -> str | None:
        """The id of a version's commit; None where it is no longer in the log."""
        return next((each.txn_id for each in self.log.newest_first(above=number - 1) if each.version == number), None)

    @contextmanager
    def changes(self, step: Step, *, unordered_max: int) -> Iterator[Iterator[Record]]:
        """
        The records of a step; in the order of their keys where there are more than `unordered_max`.

        Raises TableError and DeclarationError.
        """
        try:
            table = self.at(step.until)
            columns = self.columns(table)
            since = None if step.since is None else step.since.number
            rows = changes.came_and_went(self.spark, self.log, columns, since=since, until=step.until.number)
            changed = changes.changed_keys(rows, self.declaration.key)
            with self._sent(changed, table, columns, step.after, unordered_max) as records:
                yield records
        except changes.LostVersionError as error:
            raise TableError(lost_version(self.declaration)) from error

    @contextmanager
    def differences(self, version: Version, bounds: TopicBounds) -> Iterator[Iterator[Record]]:
        """The records that the topic lacks to hold a version, compared with the latest of each key that are in it."""
        table = self.at(version)
        columns = self.columns(table)
        # Registered before the topic is read by what is registered.
        self._register(table, columns)
        with self._sent(self.compared(version, bounds), table, columns, None, 0) as records:
            yield records

    def compared(self, version: Version, bounds: TopicBounds) -> "DataFrame":
        """
        The keys by which a version differs from the latest records of the topic, `before` being these.

        Raises TableError.
        """
        from fluvial.spark.avro import decode, read_contract
        from fluvial.spark.kafka import Span, read_span
        from fluvial.tables.plan import frames
        from fluvial.tables.plan.guards import EVERYTHING

        table, key = self.at(version), self.declaration.key
        columns = self.columns(table)
        came = changes.came_rows(table, columns)
        if bounds.ends == bounds.starts:
            return changes.changed_keys(came, key)
        contract = read_contract(self.schemas, self.declaration.topic)
        ranges = {partition: (bounds.starts[partition], end) for partition, end in bounds.ends.items()}
        span = Span(topic=self.declaration.topic, ranges=ranges)
        decoded = decode(read_span(self.spark, self.settings.cluster, span), contract)
        latest = frames.compacted_rows(decoded, contract, EVERYTHING, key=key).where("NOT _deleted")
        went = changes.went_rows(changes.aligned(latest, table, columns), columns)
        return changes.changed_keys(came.unionByName(went), key)

    def at(self, version: Version) -> "DataFrame":
        """The rows of a version. Raises TableError for one that is no longer there."""
        try:
            return changes.read_version(self.spark, self.log.path, version.number)
        except changes.LostVersionError as error:
            raise TableError(lost_version(self.declaration)) from error

    def columns(self, table: "DataFrame") -> list[str]:
        """The columns that are published, the key among them. Raises DeclarationError."""
        columns = published_columns(table.columns)
        source, key = self.declaration.source, self.declaration.key
        if key not in columns:
            raise DeclarationError(f'publish("{source}"): it has no column {key}, but {", ".join(columns)}')
        if not source.startswith("marts.") and columns[0] != key:
            raise DeclarationError(
                f'publish("{source}"): it has one row a {columns[0]}: publish it by key="{columns[0]}"'
            )
        return columns

    @contextmanager
    def _sent(
        self, changed: "DataFrame", table: "DataFrame", columns: list[str], after: str | None, unordered_max: int
    ) -> Iterator[Iterator[Record]]:
        schema, schema_id = self._register(table, columns)
        records = changes.records(changed, schema, schema_id).persist()
        try:
            count = self._count(records)
            ordered = after is not None or count > unordered_max
            yield _rows(records.orderBy(changes.KEY) if ordered else records, after)
        finally:
            records.unpersist()

    def _count(self, records: "DataFrame") -> int:
        worst = f"max_by({changes.KEY}, {changes.ROWS})"
        with changes.explain_lost_files():
            found: Any = records.selectExpr(
                "count(*)", f"max({changes.ROWS})", f"count_if({changes.KEY} IS NULL)", worst
            ).first()
        count, most, without, key = found
        if without or (most or 0) > 1:
            what = "rows whose key is null" if without else f"{most} rows of key {key}"
            raise TableError(
                f"{self.declaration.source} has {what}, and a topic of changes takes one row a key: fix the table, or "
                f"publish it by another column than {self.declaration.key}"
            )
        return int(count)

    def _register(self, table: "DataFrame", columns: list[str]) -> tuple[str, int]:
        assert isinstance(self.schemas, SchemaRegistry), "who publishes can register"
        fields = table.select(*(f"`{name}`" for name in columns)).schema.jsonValue()["fields"]
        schema = json.dumps(value_schema(self.declaration.topic, self.declaration.key, fields))
        return schema, self.schemas.register(f"{self.declaration.topic}-value", schema)


def _rows(records: "DataFrame", after: str | None) -> Iterator[Record]:
    from pyspark.sql.functions import col

    if after is not None:
        records = records.where(col(changes.KEY) > after)
    # One partition at a time is on the driver.
    for row in records.select(changes.KEY, changes.VALUE).toLocalIterator():
        yield row[0], None if row[1] is None else bytes(row[1])
