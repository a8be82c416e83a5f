"""
The newest versions of tables with what their topics hold behind them, all of one moment.

First each table's log tells a version and the offsets that it ends at, which are one commit; then the topics tell where
they end, each once, so that tables of one topic end at the same records. What lies between is read and nothing else.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.delta.erasures import read_erasures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, read_position
from fluvial.fresh import overlay
from fluvial.fresh.decoding import Decoder
from fluvial.fresh.errors import FreshError, StaleError
from fluvial.fresh.reducing import reduced_rows
from fluvial.fresh.tail import LostError, read_tail
from fluvial.query.references import quoted
from fluvial.query.routing import why_spark, why_spark_types
from fluvial.query.rows import columns_of
from fluvial.query.versions import At, Version, resolve
from fluvial.spark.avro import Contract, SchemaSource, read_contract
from fluvial.spark.kafka import Span, TopicBounds, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Compacted, Declaration, History, State
from fluvial.tables.declare.project import load_project
from fluvial.tables.drive.evolve import earlier_contract
from fluvial.tables.plan.checks import check_definition, key_column
from fluvial.tables.plan.growth import in_order
from fluvial.tables.plan.planning import GapError, plan_span

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

RECORDS_MAX = 2_000_000
"""A tail of more offsets is a run's work."""
_ATTEMPTS = 3
_LOOK_AGAIN_S = 0.05

Made = History | Compacted | State


@dataclass(kw_only=True)
class Tail:
    """
    The events behind a table, as :class:`~fluvial.query.versions.Newer` says.
    """

    declaration: Made
    contract: Contract
    number: int
    events: "pa.Table"

    def why_spark(self, columns: Sequence[tuple[str, str]]) -> str | None:
        """
        Why the declaration's own expressions are Spark's.
        """
        if not isinstance(self.declaration, State):
            return None
        folds = self.declaration.fields.values()
        texts = [text for fold in folds for text in (fold.expr, fold.where) if text]
        text = f"SELECT {', '.join([*texts, self.declaration.order or '1'])}"
        return why_spark(text) or why_spark_types(text, [*columns, *columns_of(self.events.schema)])

    def query(
        self, table: str, columns: Sequence[tuple[str, str]], folder: Path, ask: "Callable[[str], pa.Table]"
    ) -> str:
        """
        The rows of `table` with these events in it.
        """
        types, declaration = dict(columns), self.declaration
        missing = [name for name in self._made_of() if name not in types]
        if missing:
            raise FreshError(
                f"{declaration.table} has no column {missing[0]} yet: `fluvial run {declaration.table}` adds it"
            )
        if isinstance(declaration, History):
            return overlay.history(table, self._file(folder, "tail", self.events), types)
        if isinstance(declaration, Compacted):
            tail = self._file(folder, "tail", self.events)
            key = key_column(declaration, self.contract)
            return overlay.compacted(key, self.contract.field_names, table, tail, types)
        keys = self._file(folder, "keys", self._keys)
        if declaration.reducer is not None:
            old = ask(overlay.touched(declaration, table, keys))
            made = self._file(folder, "made", reduced_rows(declaration, old, self.events))
            return overlay.reduced(declaration, table, made, keys, types)
        return overlay.state(declaration, table, self._file(folder, "tail", self.events), keys, types)

    @cached_property
    def _keys(self) -> "pa.Table":
        import pyarrow as pa

        return pa.table({"_entity": self.events["_entity"].unique()})

    def _made_of(self) -> Sequence[str]:
        if isinstance(self.declaration, State):
            return (self.declaration.key, *self.declaration.columns)
        return self.contract.field_names

    def _file(self, folder: Path, what: str, rows: "pa.Table") -> str:
        import pyarrow.parquet as pq

        path = folder / f"{what}-{self.declaration.table}-{id(self):x}.parquet"
        pq.write_table(rows, path, compression="none")
        return f"parquet.{quoted(str(path))}"


@dataclass(kw_only=True)
class Freshness:
    """
    Gives the newest versions of a warehouse's tables, for :class:`~fluvial.query.engine.Door`.

    `at_least` are offsets that have to be in the answer, which is waited for up to `patience_s` seconds.
    """

    settings: Settings
    declarations: Mapping[str, Declaration]
    schemas: SchemaSource
    at_least: Sequence[At] = ()
    patience_s: float = 30.0
    records_max: int = RECORDS_MAX

    def __call__(self, tables: Sequence[str]) -> Mapping[str, Version]:
        """
        The newest version of each table, with what is behind it in its topic's log.

        Raises :class:`~fluvial.fresh.errors.FreshError`, and what a run raises of a topic that is not there or not as
        the table left it.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._of(tables)
            except (LostError, GapError):
                # A run may have read since what retention has taken now.
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _of(self, tables: Sequence[str]) -> Mapping[str, Version]:
        logs = {table: TableLog(None, Warehouse.at(self.settings.warehouse).path(table)) for table in tables}
        found: dict[str, Version] = {}
        positions: dict[str, tuple[Made, Position]] = {}
        for table, log in logs.items():
            try:
                positions[table] = (self._declaration(table), read_position(log, table))
            except StaleError as error:
                found[table] = replace(resolve(log, table), stale=str(error))
        topics = {declaration.topic for declaration, _ in positions.values()}
        for place in self.at_least:
            if place.topic not in topics:
                raise FreshError(f"--fresh-at-least {place}: no table of the query is made from {place.topic}")
        bounds = {topic: self._bounds(topic) for topic in sorted(topics)}
        for table, (declaration, position) in positions.items():
            assert position.version is not None
            version = resolve(logs[table], table, version=position.version)
            try:
                found[table] = self._newer(declaration, position, version, bounds[declaration.topic])
            except StaleError as error:
                if self.at_least:
                    raise FreshError(f"--fresh-at-least: {table} is not fresh: {error}") from error
                found[table] = replace(version, stale=str(error))
        return found

    def _declaration(self, table: str) -> Made:
        declaration = self.declarations.get(table)
        match declaration:
            case History(dedupe=str()):
                raise StaleError("it leaves out duplicates")
            case State(scd2=str()):
                raise StaleError("it keeps versions of its rows")
            case History() | Compacted() | State():
                return declaration
            case None:
                raise StaleError(f"{self.settings.project} does not declare it")
        raise StaleError("it is made from tables")

    def _wanted(self, topic: str) -> At | None:
        return next((each for each in self.at_least if each.topic == topic), None)

    def _bounds(self, topic: str) -> TopicBounds:
        """Where a topic ends, once it has what is waited for."""
        deadline = time.monotonic() + self.patience_s
        place = self._wanted(topic)
        while True:
            bounds = topic_bounds(self.settings.cluster, topic)
            wanted = {} if place is None else place.offsets
            unknown = next((partition for partition in wanted if partition not in bounds.ends), None)
            if unknown is not None:
                raise FreshError(f"--fresh-at-least {place}: {topic} has no partition {unknown}")
            short = {each: bounds.ends[each] for each, offset in wanted.items() if bounds.ends[each] <= offset}
            if not short:
                return bounds
            if time.monotonic() > deadline:
                ends = ", ".join(f"partition {each} at offset {end}" for each, end in short.items())
                raise FreshError(
                    f"--fresh-at-least {place}: after {self.patience_s:g} s {topic} still ends in {ends}: nothing "
                    "more was written, or a transaction is open"
                )
            time.sleep(_LOOK_AGAIN_S)

    def _newer(self, declaration: Made, position: Position, version: Version, bounds: TopicBounds) -> Version:
        table = declaration.table
        span = self._span(declaration, position, bounds)
        assert position.stamp is not None
        # After the bounds: whatever stands below them was written with a schema that is registered by now.
        contract = read_contract(self.schemas, declaration.topic)
        check_definition(declaration, position.stamp, contract)
        if earlier_contract(contract, position.stamp) is not None:
            raise FreshError(
                f"{contract.subject} has another version than the rows of {table}: `fluvial run {table}` brings them "
                "to it"
            )
        erasures = read_erasures(None, Warehouse.at(self.settings.warehouse).root, bounds.topic, bounds.topic_id)
        if erasures.after(position.stamp.erased):
            raise FreshError(f"keys were erased since {table} was written: `fluvial run {table}` takes them out")
        span = replace(span, skipped=position.stamp.skipped, erased=erasures.places())
        ends = {partition: end for partition, (_, end) in span.ranges.items()}
        if span.records_max == 0:
            return replace(version, ends=ends)
        events = self._events(declaration, contract, span)
        tail = Tail(declaration=declaration, contract=contract, number=span.records_max, events=events)
        return replace(version, ends=ends, newer=tail)

    def _span(self, declaration: Made, position: Position, bounds: TopicBounds) -> Span:
        span = plan_span(declaration.table, position, bounds)
        if declaration.needs_order:
            age_ms = self.settings.metadata_max_age_ms
            span, _ = in_order(declaration.table, span, bounds, position, cluster=self.settings.cluster, age_ms=age_ms)
        if span.records_max > self.records_max:
            raise FreshError(
                f"{declaration.table} is {span.records_max:,} records behind {bounds.topic}, and --fresh reads at most "
                f"{self.records_max:,}: `fluvial run {declaration.table}` first"
            )
        place = self._wanted(bounds.topic)
        left = None if place is None else next((each for each in place.offsets if each not in span.ranges), None)
        if left is not None:
            raise FreshError(f"--fresh-at-least {place}: {declaration.table} does not read partition {left} yet")
        return span

    def _events(self, declaration: Made, contract: Contract, span: Span) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.compute as pc

        decoder = Decoder(span.topic, contract)
        batches = []
        for batch in decoder.events(read_tail(self.settings.cluster, span)):
            kept = batch
            if not isinstance(declaration, History):
                keyless = pc.is_null(batch["_key"])
                if declaration.keyless == "stop" and contract.key_field is not None and pc.any(keyless).as_py():
                    first = batch.filter(keyless).slice(0, 1).to_pylist()[0]
                    raise FreshError(
                        f"the record at offset {first['_offset']} of partition {first['_partition']} of {span.topic} "
                        f"has no key, and {contract.subject} says that there is one: a run of {declaration.table} "
                        "stops there"
                    )
                kept = batch.filter(pc.invert(keyless))
            batches.append(kept)
        return pa.Table.from_batches(batches, decoder.schema())


@contextmanager
def opened(settings: Settings, at_least: Sequence[At] = (), **more: Any) -> Iterator[Freshness]:
    """
    Freshness by a project's declarations and its registry.
    """
    with settings.registry.client() as schemas:
        declared = load_project(settings.project)
        yield Freshness(settings=settings, declarations=declared, schemas=schemas, at_least=at_least, **more)
