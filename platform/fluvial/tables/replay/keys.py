"""
Rows of a compacted table or a state made again: those of the keys that a range of their topic touches.

A row is made of all records of its key, so a range alone does not tell it. The records of the range name the keys, and
these are folded again from the first record of the topic up to where the table has read, in one commit in the place of
their rows. They are read from the log, or from a history of the topic where the log no longer has its first records;
where neither holds all of them, nothing is made again.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, commit_once
from fluvial.delta.erasures import Erasures, read_erasures
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.failures import explain_failures
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.merge import merge, values
from fluvial.delta.stamp import Position, Stamp, read_position
from fluvial.spark.avro import Contract, SchemaSource, read_contract
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.kafka import TopicBounds, topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.drive.erase_table import erase_pending, key_column
from fluvial.tables.drive.evolve import contract_of
from fluvial.tables.erasure.key_in_log import keeping_of
from fluvial.tables.plan.changed_keys import BROADCAST_MAX
from fluvial.tables.plan.checks import check_definition
from fluvial.tables.plan.log_rows import rows_of_log
from fluvial.tables.plan.reducer_plan import ReducerError
from fluvial.tables.plan.result import RunResult
from fluvial.tables.replay.records import TOUCHED, LogRecords, Records, history_records
from fluvial.tables.replay.stretch import Stretch, clipped, rewriting_stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings

_GONE = "_gone"


def replay_keys(
    declaration: Compacted | State,
    settings: "Settings",
    spark: "SparkSession",
    stretch: Stretch,
    *,
    histories: Sequence[History] = (),
    schemas: SchemaSource | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """
    Make the rows of the keys again that have a record in what the table has read of a stretch.

    Raises TableError where neither the log nor one of `histories` holds all records that the table was made from.
    """
    warehouse = Warehouse.at(settings.warehouse)
    with (
        explain_failures(declaration.table, warehouse.path(declaration.table)),
        ExitStack() as opened,
        session_of_its_own(spark) as session,
    ):
        newest = read_contract(schemas or opened.enter_context(settings.registry.client()), declaration.topic)
        run = _KeyReplay(
            declaration=declaration,
            settings=settings,
            session=session,
            newest=newest,
            histories=[each for each in histories if each.topic == declaration.topic],
            say=say,
        )
        for _ in range(ATTEMPTS_MAX):
            done = run.attempt(stretch)
            if done is not None:
                return done
            say(f"{declaration.table}: another run was first; planning again")
    raise OvertakenError(declaration.table, ATTEMPTS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyReplay:
    """The replay of one table, in a session of the table's own, under the newest version of the contract."""

    declaration: Compacted | State
    settings: "Settings"
    session: "SparkSession"
    newest: Contract
    histories: Sequence[History]
    say: Callable[[str], None]

    @property
    def table(self) -> str:
        return self.declaration.table

    @property
    def root(self) -> str:
        return Warehouse.at(self.settings.warehouse).root

    @property
    def log(self) -> TableLog:
        return TableLog(self.session, Warehouse(self.root).path(self.table))

    def attempt(self, stretch: Stretch) -> RunResult | None:
        """One try; None where another writer was first."""
        position = read_position(self.log, self.table)
        bounds = topic_bounds(self.settings.cluster, self.declaration.topic)
        stamp = rewriting_stamp(self.table, position, bounds, {})
        check_definition(self.declaration, stamp, self.newest)
        contract = contract_of(self.newest, stamp)
        erasures = read_erasures(self.session, self.root, bounds.topic, bounds.topic_id)
        if self._erase(position, erasures, contract) is not None:
            return None
        records = self._records(stamp, erasures, contract, bounds)
        window = stretch.window
        ranges = stretch.offsets.get(bounds.topic, {}) if window is None else records.between(window)
        stamp = replace(stamp, rewritten=clipped(ranges, {}, position.ends))
        if not stamp.rewritten:
            return self._result(position, None, stamp)
        keys = records.keys(stamp.rewritten).persist()
        try:
            count = keys.count()
            if not count:
                return self._result(position, None, stamp)
            self.say(f"{self.table}: folding {count:,} keys again, from {records.where}")
            wanted = keys.hint("broadcast") if count <= BROADCAST_MAX else keys
            rows = self._rows(records, contract, wanted)
            commit = self._committed(position, stamp, rows, key_column(self.declaration, contract, self.session))
        finally:
            keys.unpersist()
        return None if commit is None else self._result(position, commit, stamp)

    def _erase(self, position: Position, erasures: Erasures, contract: Contract) -> object:
        """What becomes of rows of erased keys that are still there; None where there is nothing to do."""
        key = key_column(self.declaration, contract, self.session)
        is_state = isinstance(self.declaration, State)
        return erase_pending(self.session, self.log, position, erasures, root=self.root, key=key, is_state=is_state)

    def _records(self, stamp: Stamp, erasures: Erasures, contract: Contract, bounds: TopicBounds) -> Records:
        """All records that the table is made of. Raises TableError where they are not held any more."""
        starts = {each: start for each in stamp.offsets if (start := bounds.starts.get(each, 0)) > 0}
        lacking = self._never_whole(stamp, bounds)
        if lacking is None and not starts:
            return LogRecords(session=self.session, cluster=self.settings.cluster, stamp=stamp, erasures=erasures)
        if lacking is None:
            found = history_records(self.session, Warehouse(self.root), self.histories, stamp, contract)
            if found is not None:
                return found
            partition, start = next(iter(starts.items()))
            lacking = (
                f"it is folded from the beginning of {bounds.topic}, partition {partition} begins at offset {start} by "
                "now, and no declared history has every record"
            )
        raise TableError(
            f"{self.table}: {lacking}, so its keys cannot be folded again: `fluvial run --rebuild {self.table} "
            "--from-what-is-left` folds what is left"
        )

    def _never_whole(self, stamp: Stamp, bounds: TopicBounds) -> str | None:
        """Why neither the log nor a history can be known to hold all that a row is made of."""
        if stamp.adopted:
            return f"it was adopted with rows that are not of {bounds.topic}"
        if isinstance(self.declaration, State) and keeping_of(self.settings.cluster, bounds.topic).compacted:
            return f"it is folded from all records of {bounds.topic}, which compaction takes older ones out of"
        return None

    def _rows(self, records: Records, contract: Contract, keys: "DataFrame") -> "DataFrame":
        """The rows of the keys as they should be, and a row for each key, flagged, whose old rows go."""
        decoded = records.of_keys(keys, contract)
        rows = rows_of_log(self.declaration, decoded, contract).selectExpr("*", f"false AS {_GONE}")
        key = key_column(self.declaration, contract, self.session)
        gone = keys.selectExpr(f"CAST({TOUCHED} AS STRING) AS `{key}`", f"true AS {_GONE}").distinct()
        return rows.unionByName(gone, allowMissingColumns=True)

    def _committed(self, position: Position, stamp: Stamp, rows: "DataFrame", key: str) -> Commit | None:
        columns = {name: f"s.`{name}`" for name in rows.columns if name != _GONE}
        rows = rows.persist()

        def write() -> None:
            merge(
                self.session,
                self.log.path,
                rows,
                stamp,
                on=f"s.{_GONE} AND t.`{key}` = s.`{key}`",
                clauses=[
                    "WHEN MATCHED THEN DELETE",
                    f"WHEN NOT MATCHED AND NOT s.{_GONE} THEN INSERT {values(columns)}",
                ],
            )

        try:
            return commit_once(self.log, stamp, above=position.version, write=write)
        except Exception as error:
            explained = ReducerError.from_cause(error, self.table)
            if explained is None:
                raise
            raise explained from error
        finally:
            rows.unpersist()

    def _result(self, position: Position, commit: Commit | None, stamp: Stamp) -> RunResult:
        return RunResult(
            table=self.table,
            kind=self.declaration.kind,
            skipped=commit is None,
            version_before=position.version,
            version_after=position.version if commit is None else commit.version,
            offsets=stamp.rewritten,
            rows=0 if commit is None else commit.metric("numTargetRowsInserted"),
            bytes=0 if commit is None else commit.metric("numTargetBytesAdded"),
        )
