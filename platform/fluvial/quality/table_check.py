"""
A suite evaluated as a statement about a table: it fails while rows that fail are in the table.

Of a history, which only grows, the rows of earlier runs are not read again: what they had is in the `Counts` of the
last evaluation. Everything else is evaluated on the table as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluvial.delta.log import TableLog
from fluvial.delta.row_swap import CHANGE, CHANGED_AT, row_changes
from fluvial.quality.batch import Batch, last_batch, rows_here, rows_of, whole_table
from fluvial.quality.counts import Counts, added_since, ends_of
from fluvial.quality.engine import columns_read, evaluate, expectations_of, is_row_level, text_of
from fluvial.quality.outcome import Finding, Outcome
from fluvial.quality.suite import Scope, Suite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = Outcome(rows=0, seconds=0.0, findings=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheck:
    """
    What a suite found of a table.

    `outcome` is of all rows of `table`; `batch` are those of the last run, or of all runs since the last evaluation,
    `batch_rows` their number, and `batch_failing` for each finding how many of them fail, None where rows are not
    judged one by one. `fresh` are the rows whose failures no earlier evaluation has seen; None where there are none.
    `counts` serve the next evaluation. `limited` says what was left out, as the table is larger than `Suite.rows_max`.
    """

    table: Batch
    outcome: Outcome
    batch: Batch
    batch_rows: int
    batch_failing: tuple[int | None, ...]
    fresh: Batch | None
    counts: Counts | None = None
    limited: str | None = None


def check_table(spark: "SparkSession", log: TableLog, suite: Suite, earlier: Counts | None = None) -> TableCheck:
    """
    Evaluate a suite on a table; where `earlier` holds for it, only new rows are read for row-level expectations.

    Raises NoBatchError where there is no table.
    """
    evaluation = _Evaluation(spark=spark, log=log, suite=suite, wanted=expectations_of(suite.build))
    if suite.scope is Scope.TABLE:
        return evaluation.of_every_row()
    if earlier is not None and evaluation.goes_on_from(earlier):
        added = added_since(log, earlier)
        if added is not None:
            return evaluation.of_added(earlier, added)
    return evaluation.of_history()


def nothing_failed(log: TableLog, suite: Suite, version: int) -> Counts:
    """
    Return counts to go on from for whoever looks only at what came after a version, whatever failed before.
    """
    wanted = expectations_of(suite.build)
    return Counts(
        version=version,
        commit=log.commit(version).txn_id,
        suite=suite.fingerprint,
        ends=ends_of(log, version),
        rows=0,
        failing={text_of(each): 0 for each in wanted if is_row_level(each)},
    )


def check_changes(spark: "SparkSession", log: TableLog, suite: Suite, since: int | None) -> TableCheck:
    """
    Evaluate a suite of a table whose rows are replaced: of rows alone on those that came after version `since`.

    What is of the whole table is evaluated on the whole. All of it is where `since` is None, or where the changes
    cannot be read. Raises NoBatchError where there is no table.
    """
    evaluation = _Evaluation(spark=spark, log=log, suite=suite, wanted=expectations_of(suite.build))
    return evaluation.of_every_row() if since is None else evaluation.of_changes(since)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    spark: "SparkSession"
    log: TableLog
    suite: Suite
    wanted: list[Any]

    def goes_on_from(self, counts: Counts) -> bool:
        """Whether counts are of this suite."""
        wanted = {text_of(each) for each in self._row_level}
        return counts.suite == self.suite.fingerprint and wanted <= counts.failing.keys()

    def of_every_row(self) -> TableCheck:
        """Read the whole table."""
        table = whole_table(self.log)
        limited = self._limited(table)
        outcome = _NOTHING if limited else self._evaluated(table, self.wanted)
        return TableCheck(
            table=table,
            outcome=outcome,
            batch=table,
            batch_rows=outcome.rows,
            batch_failing=(None,) * len(outcome.findings),
            fresh=table,
            limited=limited and f"{limited}: nothing was evaluated",
        )

    def of_changes(self, since: int) -> TableCheck:
        """Read the rows that came, and the whole table only for what cannot be told of a row alone."""
        table = whole_table(self.log)
        if table.version == since:
            return TableCheck(table=table, outcome=_NOTHING, batch=table, batch_rows=0, batch_failing=(), fresh=None)
        came = self._came(since, table.version)
        if came is None:
            return self.of_every_row()
        of_rows = evaluate(came, self._row_level)
        others = [each for each in self.wanted if not is_row_level(each)]
        limited = self._limited(table) if others else None
        of_table = self._evaluated(table, others) if others and not limited else _NOTHING
        if limited:
            others = []
        each_row, each_table = iter(of_rows.findings), iter(of_table.findings)
        findings = tuple(
            next(each_row) if is_row_level(each) else next(each_table)
            for each in self.wanted
            if is_row_level(each) or others
        )
        return TableCheck(
            table=table,
            outcome=Outcome(rows=of_rows.rows, seconds=of_rows.seconds + of_table.seconds, findings=findings),
            batch=table,
            batch_rows=of_rows.rows,
            batch_failing=(None,) * len(findings),
            fresh=table,
            limited=limited and f"{limited}: what is not of each row alone was not evaluated",
        )

    def _came(self, since: int, until: int) -> "DataFrame | None":
        """The rows that came after a version; None where that cannot be told."""
        from pyspark.errors import AnalysisException

        try:
            changes = row_changes(self.spark, self.log.path, since=since, until=until)
        except AnalysisException:
            return None
        return None if changes is None else changes.where(f"{CHANGE} = 'insert'").drop(CHANGE, CHANGED_AT)

    def of_history(self) -> TableCheck:
        """Read the whole table, and count what later evaluations go on from."""
        table, batch = whole_table(self.log), last_batch(self.log)
        limited = self._limited(table)
        outcome = self._evaluated(batch if limited else table, self.wanted)
        batch_rows = rows_of(self.spark, batch).count()
        batch_failing = self._of_row_level(outcome.findings)
        if batch_rows != outcome.rows and any(batch_failing):
            batch_failing = self._spread(self._evaluated(batch, self._row_level).findings)
        return TableCheck(
            table=table,
            outcome=outcome,
            batch=batch,
            batch_rows=batch_rows,
            batch_failing=batch_failing,
            fresh=batch if limited else table,
            counts=None if limited else self._counts(table, ends_of(self.log, table.version), outcome),
            limited=limited and f"{limited}: only the rows of the last run were evaluated",
        )

    def of_added(self, known: Counts, added: Batch) -> TableCheck:
        """Add what new rows have to what is known; where there are none, the last run's are evaluated to show them."""
        is_new = bool(added.offsets)
        batch, table = added if is_new else last_batch(self.log), replace(added, offsets=None)
        of_rows = self._evaluated(batch, self._row_level)
        others = [each for each in self.wanted if not is_row_level(each)]
        limited = self._limited(table) if others else None
        of_table = self._evaluated(batch if limited else table, others) if others else _NOTHING
        rows = known.rows + (of_rows.rows if is_new else 0)
        each_row, each_table = iter(of_rows.findings), iter(of_table.findings)
        findings = tuple(
            _added(next(each_row), before=known.failing[text_of(each)], is_new=is_new, rows=rows)
            if is_row_level(each)
            else next(each_table)
            for each in self.wanted
        )
        outcome = Outcome(rows=rows, seconds=of_rows.seconds + of_table.seconds, findings=findings)
        ends = {**known.ends, **{partition: end for partition, (_, end) in (added.offsets or {}).items()}}
        return TableCheck(
            table=table,
            outcome=outcome,
            batch=batch,
            batch_rows=of_rows.rows,
            batch_failing=self._spread(of_rows.findings),
            fresh=None if not is_new else batch if of_table.passed else table,
            counts=self._counts(table, ends, outcome),
            limited=limited and f"{limited}: what is not of each row alone was evaluated on the batch",
        )

    @property
    def _row_level(self) -> list[Any]:
        return [each for each in self.wanted if is_row_level(each)]

    def _evaluated(self, batch: Batch, wanted: list[Any]) -> Outcome:
        here = rows_here(self.spark, batch, lambda columns: columns_read(columns, wanted))
        if here is not None:
            return evaluate(here[0], wanted, rows_here=here[1])
        return evaluate(rows_of(self.spark, batch), wanted)

    def _counts(self, table: Batch, ends: Mapping[int, int], outcome: Outcome) -> Counts | None:
        """None where an expectation could not be evaluated: the next evaluation reads the whole table."""
        failing = {}
        for each, finding in zip(self.wanted, outcome.findings, strict=True):
            if is_row_level(each):
                if finding.unexpected is None or finding.error is not None:
                    return None
                failing[text_of(each)] = finding.unexpected
        return Counts(
            version=table.version,
            commit=table.commit,
            suite=self.suite.fingerprint,
            ends=ends,
            rows=outcome.rows,
            failing=failing,
        )

    def _of_row_level(self, findings: Sequence[Finding]) -> tuple[int | None, ...]:
        pairs = zip(self.wanted, findings, strict=True)
        return tuple(finding.unexpected if is_row_level(each) else None for each, finding in pairs)

    def _spread(self, row_level: Sequence[Finding]) -> tuple[int | None, ...]:
        """Put the counts of the row-level expectations in their places in the suite."""
        found = iter(row_level)
        return tuple(next(found).unexpected if is_row_level(each) else None for each in self.wanted)

    def _limited(self, table: Batch) -> str | None:
        most = self.suite.rows_max
        if most is None:
            return None
        rows = rows_of(self.spark, table).count()
        return f"the table has {rows:,} rows, more than rows_max {most:,}" if rows > most else None


def _added(new: Finding, *, before: int, is_new: bool, rows: int) -> Finding:
    if new.unexpected is None or new.error is not None:
        return new
    failing = before + (new.unexpected if is_new else 0)
    return replace(new, passed=failing == 0, unexpected=failing, checked=rows)
