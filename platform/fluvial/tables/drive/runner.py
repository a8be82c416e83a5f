"""
Bringing a declared table up to date.

The table itself says how far it has read; a run reads what came since, up to where the topic ends now, and commits
the rows with the new position in one Delta transaction. So a run may be killed anywhere and started again, or run
twice at once: a range enters the table once or not at all. Undecodable records of a range are committed to their
quarantine table before the range is committed, never after.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from fluvial.delta.commit import ATTEMPTS_MAX, KEYED_TABLE, TABLE, append, commit_once
from fluvial.delta.erasures import Erasures, read_erasures
from fluvial.delta.errors import OvertakenError
from fluvial.delta.failures import explain_failures, explained
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.stamp import Growth, Position, Stamp, read_position
from fluvial.delta.upkeep import compact_files, is_due, write_checkpoint
from fluvial.kafka import KafkaCluster
from fluvial.spark.avro import Contract, SchemaSource, decode, read_contract
from fluvial.spark.connect import is_client, parallelism, session_of_its_own
from fluvial.spark.kafka import Span, TopicBounds, TopicError, read_span, show_position, topic_bounds
from fluvial.spark.session import know_table
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Compacted, Declaration, History, Pipeline, Publication, State
from fluvial.tables.drive.erase_table import erase_pending, key_column
from fluvial.tables.drive.evolve import earlier_contract, plan_evolution
from fluvial.tables.drive.keyless import quarantine_keyless
from fluvial.tables.drive.undecodable import Undecodable
from fluvial.tables.plan import frames
from fluvial.tables.plan.changes import IS_CURRENT, is_stepwise, state_rows
from fluvial.tables.plan.checks import check_definition, check_state, compacted_key, definition_of
from fluvial.tables.plan.duplicates import without_duplicates
from fluvial.tables.plan.fit import check_fit
from fluvial.tables.plan.growth import cut, in_order
from fluvial.tables.plan.guards import Care, KeylessError
from fluvial.tables.plan.planning import has_new_records, plan_span
from fluvial.tables.plan.reducer_plan import ReducerError
from fluvial.tables.plan.result import RunResult
from fluvial.tables.plan.skips import SkipsWanted, skips_of
from fluvial.tables.plan.table_index import ONE_BATCH_RECORDS_MAX, TableIndex, TableIndexes
from fluvial.tables.plan.upserts import upsert_changes, upsert_compacted, upsert_state
from fluvial.tables.publishing.run import PublicationRun
from fluvial.tables.publishing.table import DeltaSource, SchemaRegistry
from fluvial.tables.refresh.transforms import materialize_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings

_log = logging.getLogger(__name__)

Progress = Callable[[str], None]
Background = Callable[[Callable[[], None]], object]
"""Runs what no batch waits for, at once or beside the next ones, one after the other."""


def group_of(table: str) -> str:
    """
    The consumer group under which a table's position is shown.
    """
    return f"fluvial.{table}"


def materialize(
    declaration: Declaration,
    settings: "Settings",
    spark: "SparkSession",
    *,
    schemas: SchemaSource | None = None,
    contract: Contract | None = None,
    progress: Progress | None = None,
    indexes: TableIndexes | None = None,
    records_max: int | None = None,
    until: Mapping[int, int] | None = None,
    skip: SkipsWanted | None = None,
    erased_in: Warehouse | None = None,
    background: Background = lambda work: work(),
) -> RunResult:
    """
    Bring one table up to date and say what was done; a table that is up to date gets no commit. Or the topic that a
    table is published to, whose last version is then the result's.

    A driver that calls this repeatedly passes the same `indexes` each time, so that keys need not be looked up.
    `skip` has the offsets of records that the table is to leave out for good, by partition.
    `records_max` limits the records of one commit; such a caller repeats until `skipped`. `until` has, for
    each partition, the offset to stop before; other partitions are not read. `background` runs work that
    need not be done when this returns: committing the position as a consumer group, checkpoints. `erased_in` is the
    warehouse whose erasures hold for the table, unless they are those of its own.
    `schemas` defaults to the registry of the settings. `contract` is what
    :func:`~fluvial.tables.drive.preflight.look_ahead` has read and checked, and is not read again unless newer records
    need it. `progress` gets a line when a step starts. Raises a
    :class:`~fluvial.errors.FluvialError` with one clear line for errors that a user can fix.
    """
    say = progress or (lambda _line: None)
    began = time.monotonic()
    warehouse = Warehouse.at(settings.warehouse)
    warehouse.require_writable()
    with explain_failures(declaration.table, warehouse.path(declaration.table)), ExitStack() as opened:
        if isinstance(declaration, Pipeline):
            result = materialize_pipeline(declaration, warehouse, spark, say)
            version = None if result.skipped or is_client(spark) else result.version_after
            if version is not None and is_due(version):
                background(partial(_write_checkpoint, spark, declaration.table, warehouse.path(declaration.table)))
        elif isinstance(declaration, Publication):
            registry = (
                schemas if isinstance(schemas, SchemaRegistry) else opened.enter_context(settings.registry.client())
            )
            source = DeltaSource(declaration=declaration, settings=settings, spark=spark, schemas=registry)
            result = PublicationRun(declaration=declaration, settings=settings, source=source, say=say).run()
        else:
            run = _TopicRun(
                declaration=declaration,
                cluster=settings.cluster,
                metadata_max_age_ms=settings.metadata_max_age_ms,
                warehouse=warehouse,
                spark=spark,
                schemas=schemas or opened.enter_context(settings.registry.client()),
                contract=contract,
                say=say,
                indexes=indexes,
                records_max=records_max,
                until=until,
                skip=skip or {},
                erased_in=erased_in or warehouse,
                background=background,
            )
            result = run.run()
        is_table = not isinstance(declaration, Publication)
        if is_table and result.version_after is not None:
            know_table(spark, declaration.table, warehouse.path(declaration.table))
    return replace(result, seconds=time.monotonic() - began)


def _write_checkpoint(spark: "SparkSession", table: str, path: str) -> None:
    try:
        write_checkpoint(spark, path)
    except Exception as error:
        # The commits say all that it would; the next one is tried again.
        _log.warning("%s: no checkpoint was written: %s", table, explained(error, table) or error)
        _log.debug("%s: no checkpoint was written", table, exc_info=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One planned batch: what to read, with which contract, and the stamp that its commit will carry."""

    span: Span
    contract: Contract
    position: Position
    stamp: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicRun:
    """A run of a table that is made from a topic."""

    declaration: History | Compacted | State
    cluster: KafkaCluster
    metadata_max_age_ms: int
    warehouse: Warehouse
    spark: "SparkSession"
    schemas: SchemaSource
    contract: Contract | None
    say: Progress
    indexes: TableIndexes | None
    records_max: int | None
    until: Mapping[int, int] | None
    skip: SkipsWanted
    erased_in: Warehouse
    background: Background

    @property
    def table(self) -> str:
        return self.declaration.table

    @property
    def path(self) -> str:
        return self.warehouse.path(self.table)

    def run(self) -> RunResult:
        log = TableLog(self.spark, self.path)
        evolved: Commit | None = None
        quarantined = 0
        for attempt in range(ATTEMPTS_MAX):
            position = read_position(log, self.table)
            bounds = topic_bounds(self.cluster, self.declaration.topic)
            span = plan_span(self.table, position, bounds)
            skipped_offsets = skips_of(self.table, self.skip, position, bounds)
            lag_before = span.records_max
            span, growth = self._allowed(span, bounds, position)
            contract = self._contract(position, given=self.contract if attempt == 0 else None)
            # After the position: what is erased from here on conflicts with the batch.
            erasures = read_erasures(self.spark, self.erased_in.root, bounds.topic, bounds.topic_id)
            found = self._erase(position, erasures, contract, log) or self._evolve(position, contract, log)
            if found is not None:
                evolved = found if isinstance(found, Commit) else evolved
                continue
            if position.stamp is not None and not has_new_records(span) and growth == position.stamp.growth:
                self._show(position.ends)
                skipped = self._skipped(position, lag_before)
                return skipped if evolved is None else _evolved(skipped, evolved)
            span = replace(span, skipped=skipped_offsets, erased=erasures.places())
            batch = self._batch(span, position, bounds, contract, growth=growth, erasures=erasures)
            commit, put_aside = self._carry_out(batch, bounds, log)
            quarantined += put_aside
            if commit is not None:
                self._show({partition: end for partition, (_, end) in batch.span.ranges.items()})
                self._keep_up(batch, log)
                return self._done(batch, commit, quarantined, lag_before)
        raise OvertakenError(self.table, ATTEMPTS_MAX)

    def _contract(self, position: Position, *, given: Contract | None) -> Contract:
        """The contract that is given, unless the table knows a newer version, or else as the registry has it now."""
        stamp = position.stamp
        if given is not None and stamp is not None and given.is_older_than(stamp.schema):
            given = None
        # After the bounds: whatever stands below them was written with a schema that is registered by now.
        contract = given or read_contract(self.schemas, self.declaration.topic)
        if stamp is not None:
            check_definition(self.declaration, stamp, contract)
        if given is None:
            check_fit(self.declaration, contract)
        return contract

    def _allowed(self, span: Span, bounds: TopicBounds, position: Position) -> tuple[Span, Growth | None]:
        """The part of a span that this run may read, and the growth of its topic that it leaves alone."""
        if not self.declaration.needs_order:
            return cut(span, (), until=self.until, records=self.records_max), None
        known, age_ms = position.ends.keys(), self.metadata_max_age_ms
        span, growth = in_order(self.table, span, bounds, position, cluster=self.cluster, age_ms=age_ms)
        if growth is not None and len(span.ranges) < growth.count:
            self.say(
                f"{self.table}: {span.topic} grew from {len(known)} to {growth.count} partitions: the new ones are "
                "read once every producer knows of them"
            )
        span = cut(span, known, until=self.until, records=self.records_max)
        return span, growth if growth is not None and len(span.ranges) < growth.count else None

    def _show(self, ends: Mapping[int, int]) -> None:
        def show() -> None:
            try:
                show_position(self.cluster, group_of(self.table), self.declaration.topic, ends)
            except TopicError as error:
                # Nobody reads by it: the table itself says how far it is, and the next run shows it again.
                _log.info("%s: its position is not shown as a consumer group: %s", self.table, error)

        self.background(show)

    def _keep_up(self, batch: _Batch, log: TableLog) -> None:
        if is_due(batch.stamp.batch):
            self.background(partial(_write_checkpoint, self.spark, self.table, self.path))
        # Batches add files to a keyed table without rewriting any; those of a history are as large as they came.
        if isinstance(self.declaration, History) or not is_due(batch.stamp.batch):
            return
        with session_of_its_own(self.spark) as session:
            if compact_files(session, self.path, by=[_key_of(self.declaration, batch.contract, session)]):
                self.say(f"{self.table}: small files were written together")
                index = None if self.indexes is None else self.indexes.known(self.path)
                if index is not None:
                    index.compacted(session, log)

    def _evolve(self, position: Position, contract: Contract, log: TableLog) -> Commit | Literal["other"] | None:
        """
        Bring the rows that are there to the contract's newest version; "other" when another run was first.

        None where there is nothing to do.
        """
        earlier = None if position.stamp is None else earlier_contract(contract, position.stamp)
        if earlier is None:
            return None
        with session_of_its_own(self.spark) as session:
            rewrite = plan_evolution(self.declaration, session, self.path, position, contract=contract, earlier=earlier)
            if rewrite is None:
                return None
            self.say(f"{self.table}: {rewrite.what}")
            return commit_once(log, rewrite.stamp, above=position.version, write=rewrite.write) or "other"

    def _erase(
        self, position: Position, erasures: Erasures, contract: Contract, log: TableLog
    ) -> Commit | Literal["other"] | None:
        """Take out the rows of keys that were erased since the last commit; None where there is nothing to do."""
        if position.stamp is None or not erasures.after(position.stamp.erased):
            return None
        self.say(f"{self.table}: taking out the rows of erased keys")
        key, root = key_column(self.declaration, contract, self.spark), self.erased_in.root
        is_state = isinstance(self.declaration, State)
        return erase_pending(self.spark, log, position, erasures, root=root, key=key, is_state=is_state)

    def _batch(
        self,
        span: Span,
        position: Position,
        bounds: TopicBounds,
        contract: Contract,
        *,
        growth: Growth | None,
        erasures: Erasures,
    ) -> _Batch:
        stamp = Stamp(
            topic=bounds.topic,
            topic_id=bounds.topic_id,
            batch=1 if position.stamp is None else position.stamp.batch + 1,
            offsets=span.ranges,
            definition=definition_of(self.declaration),
            adopted={} if position.stamp is None else position.stamp.adopted,
            growth=growth,
            schema=None if contract.point is None else contract.point.as_pair(),
            skipped={partition: tuple(offsets) for partition, offsets in span.skipped.items()},
            erased=erasures.newest,
        )
        return _Batch(span=span, contract=contract, position=position, stamp=stamp)

    def _carry_out(self, batch: _Batch, bounds: TopicBounds, log: TableLog) -> tuple[Commit | None, int]:
        """
        Commit the batch, with as much care as its records turn out to need; None when it is to be planned again.

        The number is of the records that were put aside.
        """
        # A session of the table's own: MERGE takes its stamp from the session.
        with session_of_its_own(self.spark) as session:
            return self._carry_out_in(session, batch, bounds, log)

    def _carry_out_in(
        self, session: "SparkSession", batch: _Batch, bounds: TopicBounds, log: TableLog
    ) -> tuple[Commit | None, int]:
        care = Care(keyless=batch.contract.key_field is None, takes_keyless=self.declaration.keyless == "quarantine")
        quarantined = 0
        self.say(f"{self.table}: reading {batch.span.records_max:,} records of {batch.span.topic}")
        while True:
            decoded = decode(read_span(session, self.cluster, batch.span), batch.contract)
            try:
                commit = commit_once(
                    log, batch.stamp, above=batch.position.version, write=self._writer(session, decoded, batch, care)
                )
            except Exception as error:
                more = care.after(error)
                if more is None:
                    explanation = KeylessError.from_cause(error, self.table, batch.contract) or ReducerError.from_cause(
                        error, self.table
                    )
                    if explanation is not None:
                        raise explanation from error
                    raise
                if more.undecodable and batch.contract is self.contract:
                    # Records that came since it was read may be of a newer version.
                    return None, quarantined
                if more.undecodable and not care.undecodable:
                    quarantined += self._undecodable(session, batch, bounds).quarantine(batch.span)
                quarantined += quarantine_keyless(
                    decoded, more.key_beyond(care), batch.span, bounds, warehouse=self.warehouse, say=self.say
                )
                care = more
                continue
            if commit is None:
                self.say(f"{self.table}: another run was first; planning again")
            return commit, quarantined

    def _undecodable(self, session: "SparkSession", batch: _Batch, bounds: TopicBounds) -> Undecodable:
        return Undecodable(
            spark=session,
            cluster=self.cluster,
            warehouse=self.warehouse,
            bounds=bounds,
            contract=batch.contract,
            erased=batch.stamp.erased,
            say=self.say,
        )

    def _writer(self, session: "SparkSession", decoded: "DataFrame", batch: _Batch, care: Care) -> Callable[[], None]:
        """What writes the batch; making it reads nothing yet."""
        path, stamp, version = self.path, batch.stamp, batch.position.version
        files = batch.span.tasks(parallelism(session))
        match self.declaration:
            case History() as history:
                rows = frames.history_rows(decoded, batch.contract, care)

                def write() -> None:
                    with without_duplicates(rows, history, path, version) as kept:
                        append(kept.coalesce(files), path, stamp, TABLE if version is None else {})

                return write
            case Compacted():
                key = compacted_key(self.declaration, batch.contract, session)
                latest = frames.compacted_rows(decoded, batch.contract, care, key=key)
                if version is None:
                    alive = frames.ordered(latest.where("NOT _deleted").drop("_deleted"), key)
                    return lambda: append(alive, path, stamp, KEYED_TABLE)
                index = _index(self, batch, key, placed=True)
                return lambda: upsert_compacted(
                    session, path, latest, key=key, version=version, stamp=stamp, files=files, index=index
                )
            case State() as declaration:
                _check(declaration, batch, session)
                if is_stepwise(declaration):
                    events = frames.keyed_events(decoded, batch.contract, care)
                    return self._steps_writer(session, declaration, events, batch, files)
                events = frames.state_events(decoded, batch.contract, care)
                partials = frames.state_partials(events, declaration)
                if version is None:
                    rows = frames.ordered(frames.state_rows(partials, declaration), declaration.key)
                    return lambda: append(rows, path, stamp, KEYED_TABLE)
                index = _index(self, batch, declaration.key, placed=False)
                return lambda: upsert_state(
                    session, path, partials, declaration, version=version, stamp=stamp, files=files, index=index
                )

    def _steps_writer(
        self, session: "SparkSession", declaration: State, events: "DataFrame", batch: _Batch, files: int
    ) -> Callable[[], None]:
        path, stamp, version = self.path, batch.stamp, batch.position.version
        if version is None:
            rows = frames.ordered(state_rows(events, declaration), declaration.key)
            return lambda: append(rows, path, stamp, KEYED_TABLE)
        only = IS_CURRENT if declaration.scd2 is not None else None
        index = _index(self, batch, declaration.key, placed=False, only=only)
        return lambda: upsert_changes(
            session, path, events, declaration, version=version, stamp=stamp, files=files, index=index
        )

    def _skipped(self, position: Position, lag_before: int) -> RunResult:
        return RunResult(
            table=self.table,
            kind=self.declaration.kind,
            skipped=True,
            version_before=position.version,
            version_after=position.version,
            offsets={partition: (end, end) for partition, end in position.ends.items()},
            lag_before=lag_before,
        )

    def _done(self, batch: _Batch, commit: Commit, quarantined: int, lag_before: int) -> RunResult:
        merged = commit.metric("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
        stamp = Stamp.of(commit) or batch.stamp
        return RunResult(
            table=self.table,
            kind=self.declaration.kind,
            skipped=False,
            version_before=batch.position.version,
            version_after=commit.version,
            offsets=batch.span.ranges,
            rows=merged if commit.operation == "MERGE" else commit.metric("numOutputRows") + stamp.removed,
            quarantined=quarantined,
            bytes=commit.metric("numOutputBytes", "numTargetBytesAdded"),
            lag_before=lag_before,
        )


def _check(declaration: State, batch: _Batch, session: "SparkSession") -> None:
    """Check the folds, unless the table has rows that they made of the same versions of the contract."""
    before = batch.position.stamp
    if before is None or before.schema is None or before.schema != batch.stamp.schema:
        check_state(declaration, batch.contract, session)


def _index(run: _TopicRun, batch: _Batch, key: str, *, placed: bool, only: str | None = None) -> TableIndex | None:
    """Where the table's keys lie; None where it is for Spark to look for those of this batch."""
    indexes = run.indexes
    if indexes is None:
        if batch.span.records_max > ONE_BATCH_RECORDS_MAX:
            return None
        indexes = TableIndexes.of_one_batch()
    return indexes.of(run.path, key, placed=placed, only=only)


def _evolved(skipped: RunResult, commit: Commit) -> RunResult:
    """The result of a run that read nothing and brought the rows to a newer version of the contract."""
    return replace(
        skipped,
        skipped=False,
        version_after=commit.version,
        rows=commit.metric("numOutputRows"),
        bytes=commit.metric("numOutputBytes"),
    )


def _key_of(declaration: Compacted | State, contract: Contract, session: "SparkSession") -> str:
    return declaration.key if isinstance(declaration, State) else compacted_key(declaration, contract, session)
