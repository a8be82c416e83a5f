"""
Tables kept up to date for as long as the process runs: whenever a topic has new records, a batch.

One question to the cluster tells of all topics at once what is new, so that a hundred idle tables cost no more than
one. Between batches the driver remembers where the rows of keyed tables lie (:mod:`fluvial.tables.plan.table_index`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Protocol

from fluvial.catalog.registrar import Registrar
from fluvial.delta.errors import DiskFullError, TableError
from fluvial.errors import FluvialError
from fluvial.registry.errors import RegistryError
from fluvial.spark.connect import is_client
from fluvial.spark.kafka import TopicEnds, TopicError
from fluvial.tables.declare.declarations import Declaration, Pipeline, Publication
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.result import RunResult
from fluvial.tables.plan.table_index import TableIndexes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings
    from fluvial.spark.avro import Contract, SchemaSource

POLL_SECONDS = 0.2
RETRY_SECONDS_MAX = 10.0
POOL = "tables"
"""Where Spark schedules the batches' tasks."""
FAILURES_MAX = 5
"""How often in a row Spark may fail on a table for a reason that is not known before the table is given up."""
RECORDS_MAX = 1_000_000
"""Of one batch: what a table has to catch up with is taken in parts that a laptop's memory holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """
    Who is told how it goes: of each batch, of what must be waited for, and of a table that is given up and why.
    """

    batch: Callable[[RunResult], None] = lambda _result: None
    waiting: Callable[[str], None] = lambda _reason: None
    stopped: Callable[[str, FluvialError], None] = lambda _table, _error: None


class Checks(Protocol):
    """
    What looks at a table after each of its batches (:class:`fluvial.quality.RunningChecks`).
    """

    def after(self, table: str) -> None:
        """
        Look at a table. Raises FluvialError where it is to stop, and what reads it to wait.
        """


def follow(
    declarations: Sequence[Declaration],
    settings: "Settings",
    spark: "SparkSession",
    stop: Event,
    *,
    schemas: "SchemaSource",
    contracts: "Mapping[str, Contract] | None" = None,
    watcher: Watcher | None = None,
    checks: Checks | None = None,
    records_max: int = RECORDS_MAX,
) -> dict[str, FluvialError]:
    """
    Keep the tables of `declarations` up to date until `stop` is set; the batch under way is finished then.

    `declarations` stand with inputs before what reads them. A table that cannot go on (its contract broke, its topic
    was made again, a file of it is lost) is left alone, and the others go on; a cluster or registry that does not
    answer and a disk that is full are waited for. What the `checks` stop is left alone too, and what reads it stays at
    the version that it has. The first batches do not read `contracts`, by table, again. Returns
    the errors of the tables that were given up, by their names; ends early when there is none left.
    """
    watcher = watcher or Watcher()
    indexes = TableIndexes()
    known = dict(contracts or {})
    background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aside")

    registrar = Registrar.of(settings)

    def bring_up(declaration: Declaration) -> RunResult:
        result = materialize(
            declaration,
            settings,
            spark,
            schemas=schemas,
            contract=known.pop(declaration.table, None),
            indexes=indexes,
            records_max=records_max,
            background=background.submit,
        )
        if registrar is not None:
            background.submit(registrar.after, declaration, result, spark, watcher.waiting)
        return result

    followers = [_Follower(each, bring_up, watcher, checks) for each in declarations]
    pause = POLL_SECONDS
    with background, _in_a_pool(spark), TopicEnds(settings.cluster) as topics:
        while not stop.is_set() and any(each.error is None for each in followers):
            try:
                worked = _round(followers, topics, stop)
                pause = POLL_SECONDS
            except TopicError as error:
                watcher.waiting(str(error))
                worked, pause = False, min(pause * 2, RETRY_SECONDS_MAX)
            if not worked:
                stop.wait(pause)
    return {each.declaration.table: each.error for each in followers if each.error is not None}


@contextmanager
def _in_a_pool(spark: "SparkSession") -> Iterator[None]:
    """Have Spark give the jobs of this thread turns beside all others, such as what somebody asks of the tables."""
    if is_client(spark):
        yield
        return
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", POOL)
    try:
        yield
    finally:
        if context._jsc is not None:
            context.setLocalProperty("spark.scheduler.pool", None)


def _round(followers: Sequence["_Follower"], topics: TopicEnds, stop: Event) -> bool:
    """Give every table that has new records a batch; whether any was written."""
    active = [each for each in followers if each.error is None]
    ends = topics.of({each.topic for each in active if each.topic is not None})
    worked = False
    held = {each.declaration.table for each in followers if each.is_held}
    for each in active:
        if stop.is_set():
            break
        # One that waits for another does not change, so that what reads it in turn need not be held.
        if not held.isdisjoint(each.inputs):
            continue
        if each.has_new_records(ends, worked=worked):
            worked |= each.bring_up()
            if each.is_held:
                held.add(each.declaration.table)
    return worked


class _Follower:
    """One table: how far it has read, or why it is read no more."""

    def __init__(
        self,
        declaration: Declaration,
        materialize: Callable[[Declaration], RunResult],
        watcher: Watcher,
        checks: Checks | None,
    ) -> None:
        self.declaration = declaration
        self.inputs = declaration.inputs if isinstance(declaration, Pipeline | Publication) else ()
        # Whether a check has stopped the table, or could not look at it yet, so that nothing is made of what it holds.
        self.is_held = False
        self.topic = None if isinstance(declaration, Pipeline | Publication) else declaration.topic
        self.error: FluvialError | None = None
        self._materialize = materialize
        self._watcher = watcher
        self._checks = checks
        self._is_checked = checks is None
        self._has_run = False
        self._ends: Mapping[int, int] = {}
        self._failures = 0
        self._not_before = 0.0

    def has_new_records(self, ends: Mapping[str, Mapping[int, int]], *, worked: bool) -> bool:
        """Whether there may be something to do. `worked`: tables before it, which it may read, got a batch."""
        if not self._has_run:
            return time.monotonic() >= self._not_before
        return worked if self.topic is None else self._ends != ends.get(self.topic)

    def bring_up(self) -> bool:
        """Do a batch; whether anything was written. Raises TopicError while the cluster does not answer."""
        # Whoever fails for want of the cluster has new records for as long as it has not succeeded.
        self._has_run = False
        try:
            result = self._materialize(self.declaration)
        except TopicError:
            raise
        except FluvialError as error:
            if self._tries_again(error):
                self._watcher.waiting(str(error))
            else:
                self.error = error
                self._watcher.stopped(self.declaration.table, error)
            return False
        self._ends = {partition: end for partition, (_, end) in result.offsets.items()}
        if not result.skipped:
            self._watcher.batch(result)
        self._has_run = self._passes(result)
        if self._has_run:
            self._failures = 0
        return not result.skipped

    def _passes(self, result: RunResult) -> bool:
        """Whether the checks are done with the table, as it was found or as a batch has left it."""
        if self._checks is None or isinstance(self.declaration, Publication):
            return True
        if self._is_checked and result.skipped:
            return True
        self._is_checked, self.is_held = False, True
        try:
            self._checks.after(self.declaration.table)
        except FluvialError as error:
            if self._tries_again(error):
                self._watcher.waiting(str(error))
                return False
            self.error = error
            self._watcher.stopped(self.declaration.table, error)
            return True
        self._is_checked, self.is_held = True, False
        return True

    def _tries_again(self, error: FluvialError) -> bool:
        """Whether what failed is tried once more, and then when: later each time, and as often as something is away."""
        # A registry that answers has a status below 500.
        is_away = isinstance(error, DiskFullError) or (
            isinstance(error, RegistryError) and (error.status or 500) >= 500
        )
        if not is_away and not (isinstance(error, TableError) and error.retriable):
            return False
        self._failures += 1
        pause = min(POLL_SECONDS * 2**self._failures, RETRY_SECONDS_MAX)
        self._not_before = time.monotonic() + pause
        return is_away or self._failures < FAILURES_MAX
