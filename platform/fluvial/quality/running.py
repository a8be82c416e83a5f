"""
Suites evaluated beside a run that goes on and on, on the rows that came since they were evaluated last.

A suite that stops its table is evaluated as soon as a batch is committed, before anything that reads the table gets a
turn, and first on all that the table has. The others are evaluated in a thread of their own, some seconds after a batch
and over all that came until then, so that no batch waits for them.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.quality.batch import NoBatchError
from fluvial.quality.counts import Counts
from fluvial.quality.failing_rows import keep_failing_rows
from fluvial.quality.suite import Scope, Suite, SuiteError
from fluvial.quality.table_check import TableCheck, check_changes, check_table, nothing_failed
from fluvial.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_BETWEEN = 10.0
"""An evaluation costs a second or so whatever it reads; batches may come several times a second."""
_log = logging.getLogger(__name__)


class SuiteFailedError(FluvialError):
    """
    A suite that stops its table fails: what reads the table keeps the version that it has.
    """

    def __init__(self, suite: Suite, sentence: str, kept: str | None) -> None:
        self.suite = suite
        where = "" if kept is None else f"; rows that fail are in {kept}"
        super().__init__(
            f"suite {suite.name} fails on {suite.table}: {sentence}{where}; what reads the table waits: repair the "
            "rows, or what the suite asks, and run it again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """
    One evaluation: what was found, a sentence on what fails that was not told before ("" where all else holds), and the
    table that keeps such rows.
    """

    suite: Suite
    found: TableCheck
    sentence: str
    kept: str | None


class RunningChecks:
    """
    The suites of a long run; for a ``with``, at the end of which all that came has been looked at.

    `on_checked` hears of each evaluation that looked at new rows, `say` of one that could not be made.
    """

    def __init__(
        self,
        suites: Iterable[Suite],
        warehouse: Warehouse,
        spark: "SparkSession",
        *,
        on_checked: Callable[[Checked], None],
        say: Callable[[str], None],
        seconds_between: float = SECONDS_BETWEEN,
    ) -> None:
        self._suites: dict[str, list[Suite]] = {}
        for suite in suites:
            self._suites.setdefault(suite.table, []).append(suite)
        self._warehouse = warehouse
        self._spark = spark
        self._on_checked = on_checked
        self._say = say
        self._seconds_between = seconds_between
        self._known: dict[tuple[str, str], Counts | int] = {}
        self._due: dict[tuple[str, str], Suite] = {}
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="checks", daemon=True)

    def __enter__(self) -> Self:
        for suite in (each for suites in self._suites.values() for each in suites):
            version = None if suite.blocking else self._version(suite)
            if version is not None:
                # Rows of earlier runs were looked at then; the whole of a large table would take minutes.
                self._known[suite.table, suite.name] = version
        self._thread.start()
        return self

    def _version(self, suite: Suite) -> int | None:
        try:
            return TableLog(self._spark, self._warehouse.path(suite.table)).newest_version()
        except FluvialError:
            # The run of the table meets it too, and says it.
            return None

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join()

    def after(self, table: str) -> None:
        """
        Look at what a batch of a table brought. Raises :class:`SuiteFailedError` where a suite stops the table.
        """
        for suite in self._suites.get(table, ()):
            if suite.blocking:
                self._stop_if_failing(suite)
            else:
                with self._changed:
                    self._due[suite.table, suite.name] = suite
                    self._changed.notify()

    def _stop_if_failing(self, suite: Suite) -> None:
        try:
            checked = self._check(suite)
        except FluvialError:
            raise
        except Exception as error:
            raise SuiteError(_not_evaluated(suite, error)) from error
        if checked is None:
            return
        self._on_checked(checked)
        # An expectation of which the failure is a warning stops nothing, here as under Dagster.
        if checked.found.outcome.critical:
            raise SuiteFailedError(suite, _sentence(checked.found, only_new=False), checked.kept)

    def _work(self) -> None:
        last: dict[tuple[str, str], float] = {}
        while True:
            with self._changed:
                now = time.monotonic()
                ready = [
                    key
                    for key in self._due
                    if self._ends or now - last.get(key, -self._seconds_between) >= self._seconds_between
                ]
                if not ready:
                    if self._ends:
                        return
                    self._changed.wait(self._seconds_between / 4 if self._due else None)
                    continue
                suites = [self._due.pop(key) for key in ready]
            for key, suite in zip(ready, suites, strict=True):
                self._check_and_tell(suite)
                last[key] = time.monotonic()

    def _check_and_tell(self, suite: Suite) -> None:
        try:
            checked = self._check(suite)
            if checked is not None:
                self._on_checked(checked)
        except Exception as error:
            # The next evaluation looks at the same rows once more.
            self._say(_not_evaluated(suite, error))
            _log.debug("a suite could not be evaluated", exc_info=True)

    def _check(self, suite: Suite) -> Checked | None:
        """Evaluate a suite on what came; None where nothing did."""
        key, path = (suite.table, suite.name), self._warehouse.path(suite.table)
        known = self._known.pop(key, None)
        with explain_failures(suite.table, path):
            try:
                found = self._found(suite, known)
            except NoBatchError:
                return None
            except Exception:
                if known is None:
                    raise
                # Files of the changes may be gone by now: the whole table tells as well.
                found = self._found(suite, None)
        if found.fresh is None:
            if known is not None:
                self._known[key] = known
            return None
        kept = None
        if suite.keeps and not found.outcome.passed:
            kept = keep_failing_rows(self._spark, self._warehouse, suite, found.fresh, found.outcome)
        after = found.counts if suite.scope is Scope.BATCH else found.table.version
        if after is not None:
            self._known[key] = after
        return Checked(suite=suite, found=found, sentence=_sentence(found, only_new=known is not None), kept=kept)

    def _found(self, suite: Suite, known: Counts | int | None) -> TableCheck:
        log = TableLog(self._spark, self._warehouse.path(suite.table))
        if suite.scope is Scope.BATCH:
            counts = nothing_failed(log, suite, known) if isinstance(known, int) else known
            return check_table(self._spark, log, suite, counts)
        return check_changes(self._spark, log, suite, known if isinstance(known, int) else None)


def _sentence(found: TableCheck, *, only_new: bool) -> str:
    """What does not hold, with the number of rows where it is of rows; "" where all of it does."""
    parts = []
    for finding, in_batch in zip(found.outcome.findings, found.batch_failing, strict=True):
        if not finding.passed and not (only_new and in_batch == 0):
            count = finding.unexpected if in_batch is None else in_batch
            where = "rows of earlier runs" if in_batch == 0 else f"{count:,} rows" if count else ""
            parts.append(f"{finding}{f': {where}' if where else ''}{f' ({finding.error})' if finding.error else ''}")
    return "; ".join(parts)


def _not_evaluated(suite: Suite, error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"suite {suite.name} of {suite.table} could not be evaluated: {first}"
