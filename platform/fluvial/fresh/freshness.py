"""
The newest versions of tables with what their topics hold behind them, all of one moment.

First each table's log tells a version and the offsets that it ends at, which are one commit; then the topics tell where
they end, each once, so that tables of one topic end at the same records. What lies between is read and nothing else.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.delta.erasures import read_erasures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, read_position
from fluvial.fresh.behind import Made, Tail
from fluvial.fresh.decoding import Decoder
from fluvial.fresh.errors import FreshError, StaleError
from fluvial.fresh.marts import fresh_mart, mart_as_of
from fluvial.fresh.tail import LostError, read_tail
from fluvial.query.versions import At, NoSuchOffsetError, Version, resolve
from fluvial.spark.avro import Contract, SchemaSource, read_contract
from fluvial.spark.kafka import Span, TopicBounds, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Compacted, Declaration, History, Pipeline, State
from fluvial.tables.declare.project import load_project
from fluvial.tables.drive.evolve import earlier_contract
from fluvial.tables.plan.checks import check_definition
from fluvial.tables.plan.growth import in_order
from fluvial.tables.plan.planning import GapError, plan_span

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_MAX = 2_000_000
"""A tail of more offsets is a run's work."""
_ATTEMPTS = 3
_LOOK_AGAIN_S = 0.05


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

    def as_of(self, table: str, places: Sequence[At]) -> Version:
        """
        A table with the records up to the offsets of places, and of partitions that these do not name with what the
        version before them has: the version that ends there, or one that is made of what the log and its inputs hold.

        Raises :class:`~fluvial.query.versions.NoSuchOffsetError`, :class:`~fluvial.fresh.errors.FreshError`, and what a
        run raises of a topic.
        """
        declaration = self.declarations.get(table)
        if isinstance(declaration, Pipeline):
            inputs = {}
            for each in declaration.inputs:
                pinned = declaration.pinned.get(each)
                inputs[each] = self.as_of(each, places) if pinned is None else self._version(each, pinned)
            return mart_as_of(declaration, self._version(table), inputs, Warehouse.at(self.settings.warehouse))
        try:
            return resolve(self._log(table), table, places=places)
        except NoSuchOffsetError as error:
            if error.below is None or error.place is None:
                raise
            return self._up_to(error.below, error.place)

    def _version(self, table: str, number: int | None = None) -> Version:
        return resolve(self._log(table), table, version=number)

    def _up_to(self, version: Version, place: At) -> Version:
        """A version of a table with the records behind it up to the offsets of a place."""
        declaration = self._declaration(version.table)
        position = read_position(self._log(version.table), version.table, version=version.version)
        bounds = topic_bounds(self.settings.cluster, place.topic)
        for partition, offset in place.offsets.items():
            if bounds.ends.get(partition, 0) <= offset:
                raise FreshError(f"partition {partition} of {place.topic} does not hold offset {offset} yet")
        known = {partition: position.ends.get(partition, start) for partition, start in bounds.starts.items()}
        ends = known | {partition: offset + 1 for partition, offset in place.offsets.items()}
        made = self._newer(declaration, position, version, replace(bounds, ends=ends))
        if any(made.ends.get(partition) != offset + 1 for partition, offset in place.offsets.items()):
            raise FreshError(f"{version.table} reads the partitions of {place.topic} in another order")
        return made

    def _of(self, tables: Sequence[str]) -> Mapping[str, Version]:
        marts, bases = self._apart(tables)
        # Before their inputs: what is newer in these is then taken for what it is.
        newest = {table: resolve(self._log(table), table) for table in marts}
        found: dict[str, Version] = {}
        positions: dict[str, tuple[Made, Position]] = {}
        for table in bases:
            try:
                positions[table] = (self._declaration(table), read_position(self._log(table), table))
            except StaleError as error:
                found[table] = replace(resolve(self._log(table), table), stale=str(error))
        topics = {declaration.topic for declaration, _ in positions.values()}
        for place in self.at_least:
            if place.topic not in topics:
                raise FreshError(f"--fresh-at-least {place}: no table of the query is made from {place.topic}")
        bounds = {topic: self._bounds(topic) for topic in sorted(topics)}
        for table, (declaration, position) in positions.items():
            assert position.version is not None
            version = resolve(self._log(table), table, version=position.version)
            try:
                found[table] = self._newer(declaration, position, version, bounds[declaration.topic])
            except StaleError as error:
                found[table] = self._stale(version, error, asked=table in tables)
        for table, mart in marts.items():
            try:
                found[table] = self._mart(mart, newest[table], found)
            except StaleError as error:
                found[table] = self._stale(newest[table], error, asked=table in tables)
        return {table: found[table] for table in tables}

    def _stale(self, version: Version, error: StaleError, *, asked: bool) -> Version:
        if self.at_least and asked:
            raise FreshError(f"--fresh-at-least: {version.table} is not fresh: {error}") from error
        return replace(version, stale=str(error))

    def _apart(self, tables: Sequence[str]) -> tuple[dict[str, Pipeline], list[str]]:
        """The tables of pipelines, each behind those that it is made from, and all other tables that are read."""
        marts: dict[str, Pipeline] = {}
        bases: list[str] = []

        def take(table: str) -> None:
            declaration = self.declarations.get(table)
            if table in marts or table in bases:
                return
            if isinstance(declaration, Pipeline):
                for each in declaration.inputs:
                    if each not in declaration.pinned and self._log(each).newest_version() is not None:
                        take(each)
                marts[table] = declaration
            else:
                bases.append(table)

        for table in tables:
            take(table)
        return marts, bases

    def _mart(self, declaration: Pipeline, version: Version, found: Mapping[str, Version]) -> Version:
        inputs = {}
        for table in declaration.inputs:
            if table in declaration.pinned:
                inputs[table] = self._version(table, declaration.pinned[table])
            elif table in found:
                inputs[table] = found[table]
            else:
                raise StaleError(f"there is no {table}")
        newer = fresh_mart(declaration, version, inputs, Warehouse.at(self.settings.warehouse))
        return version if newer is None else replace(version, newer=newer, of=[*inputs.values()])

    def _log(self, table: str) -> TableLog:
        return TableLog(None, Warehouse.at(self.settings.warehouse).path(table))

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
        for records in read_tail(self.settings.cluster, span):
            kept = batch = decoder.events(records)
            if not isinstance(declaration, History):
                keyless = pc.is_null(batch["_entity"])
                if declaration.keyless == "stop":
                    _demand_keys(batch.filter(keyless), declaration, contract, span)
                kept = batch.filter(pc.invert(keyless))
            batches.append(kept)
        return pa.Table.from_batches(batches, decoder.schema())


def _demand_keys(left_out: "pa.RecordBatch", declaration: Made, contract: Contract, span: Span) -> None:
    """Raise FreshError where a run stops at one of the records that no table of keys has a place for."""
    for record in left_out.select(["_partition", "_offset", "_key"]).to_pylist():
        if record["_key"] is not None:
            wrong = "has a key that is no UTF-8 text"
        elif contract.key_field is not None:
            wrong = f"has no key, and {contract.subject} says that there is one"
        else:
            continue
        raise FreshError(
            f"the record at offset {record['_offset']} of partition {record['_partition']} of {span.topic} {wrong}: a "
            f"run of {declaration.table} stops there"
        )


@contextmanager
def opened(settings: Settings, at_least: Sequence[At] = (), **more: Any) -> Iterator[Freshness]:
    """
    Freshness by a project's declarations and its registry.
    """
    with settings.registry.client() as schemas:
        declared = load_project(settings.project)
        yield Freshness(settings=settings, declarations=declared, schemas=schemas, at_least=at_least, **more)


def made_as_of(settings: Settings, table: str, places: Sequence[At], **more: Any) -> Version:
    """
    As :meth:`Freshness.as_of`, by a project's declarations and its registry.
    """
    with opened(settings, **more) as freshness:
        return freshness.as_of(table, places)
