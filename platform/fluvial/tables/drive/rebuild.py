"""
A table built again from the log beside the live one, which readers see unchanged until one commit replaces its rows.

The new rows gather in a table of the same kind under `<warehouse>/_rebuild`, by the same batches as ever, so a rebuild
that is killed goes on where it was. The commit that puts them into the live table carries their position, and Delta
refuses it when another run was there meanwhile; the rebuild then reads on and tries again. Where the live table's own
log is broken, so that nothing can be committed to it, what is left of the table is moved to `<warehouse>/_broken`.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fluvial.delta.commit import ATTEMPTS_MAX, KEYED_TABLE, commit_once, replace_table
from fluvial.delta.erasures import read_erasures
from fluvial.delta.errors import BrokenLogError, OvertakenError, TableError, TableFileError, folder_of, plain_path
from fluvial.delta.failures import explain_failures
from fluvial.delta.jvm import forget_log
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.stamp import Skips, Stamp, new_run_id, read_position
from fluvial.spark.connect import is_client
from fluvial.spark.kafka import TopicBounds, topic_bounds
from fluvial.spark.session import register_table
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Declaration, History, Pipeline, Publication
from fluvial.tables.drive.runner import materialize
from fluvial.tables.plan.checks import definition_of
from fluvial.tables.plan.result import RunResult
from fluvial.tables.plan.skips import SkipsWanted, merged
from fluvial.tables.publishing.run import PublicationRun
from fluvial.tables.publishing.table import DeltaSource, SchemaRegistry
from fluvial.tables.refresh.transforms import materialize_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings
    from fluvial.spark.avro import Contract, SchemaSource

ASIDE = "_rebuild"
BROKEN = "_broken"
RECORDS_MAX = 1_000_000

Result = TypeVar("Result")


class IncompleteLogError(TableError):
    """
    The log no longer holds its beginning, so that a table built from it would lack what the live one may have.
    """

    def __init__(self, table: str, topic: str, starts: dict[int, int]) -> None:
        self.starts = starts
        where = ", ".join(f"partition {number} begins at offset {start}" for number, start in sorted(starts.items()))
        super().__init__(
            f"{table} would lose what only it still holds: {topic} no longer has its first records ({where}); "
            "--from-what-is-left builds it from the others all the same"
        )


def rebuild(
    declaration: Declaration,
    settings: "Settings",
    spark: "SparkSession",
    *,
    schemas: "SchemaSource | None" = None,
    contract: "Contract | None" = None,
    from_what_is_left: bool = False,
    skip: SkipsWanted | None = None,
    progress: Callable[[RunResult], None] = lambda _result: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """
    Build a table again from the first record of its topic, and put it in the place of the live one in one commit.

    A pipeline's table is written again from its inputs. Of a publication, have its topic hold the table: the two are
    compared, and what differs is published.

    Records that the live table leaves out by `fluvial run --skip` are left out again, and those that `skip` names.
    `progress` hears of each batch, `say` of a broken table that was moved away. Raises :class:`IncompleteLogError`,
    unless `from_what_is_left`, and whatever :func:`~fluvial.tables.drive.runner.materialize` raises; the live table is
    as it was then.
    """
    if is_client(spark) and Warehouse.at(settings.warehouse).local is None:
        raise TableError(
            f"{declaration.table} cannot be rebuilt through Spark Connect in {settings.warehouse}: a client cannot "
            "remove the table that it has built aside; rebuild it with another master"
        )
    began = time.monotonic()
    if isinstance(declaration, Publication):
        with explain_failures(declaration.table):
            return replace(_republish(declaration, settings, spark, schemas), seconds=time.monotonic() - began)
    work = _Rebuild(declaration=declaration, settings=settings, spark=spark, contract=contract, say=say)
    if isinstance(declaration, Pipeline):
        return replace(work.to_live(work.write_pipeline), seconds=time.monotonic() - began)
    bounds = topic_bounds(settings.cluster, declaration.topic)
    if not from_what_is_left:
        work.check_not_adopted()
        work.check_beginning(bounds)
    skips = merged(work.skipped_before(bounds), skip or {})
    work.drop_what_was_built_otherwise(bounds, skips)
    try:
        done = work.build_and_switch(schemas, progress, skips)
    except TableFileError as error:
        if not work.is_staging(error):
            raise
        # What an earlier rebuild has left is damaged too.
        work.remove_staging()
        done = work.build_and_switch(schemas, progress, skips)
    return replace(done, seconds=time.monotonic() - began)


def _republish(
    declaration: Publication, settings: "Settings", spark: "SparkSession", schemas: "SchemaSource | None"
) -> RunResult:
    with ExitStack() as opened:
        registry = schemas if isinstance(schemas, SchemaRegistry) else opened.enter_context(settings.registry.client())
        source = DeltaSource(declaration=declaration, settings=settings, spark=spark, schemas=registry)
        return PublicationRun(declaration=declaration, settings=settings, source=source).rebuild()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rebuild:
    declaration: Any
    settings: "Settings"
    spark: "SparkSession"
    contract: "Contract | None"
    say: Callable[[str], None]

    @property
    def table(self) -> str:
        return str(self.declaration.table)

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse.at(self.settings.warehouse)

    @property
    def staging(self) -> Warehouse:
        """Of this table alone: rebuilds of two tables share nothing, not even what they quarantine."""
        return Warehouse.at(f"{self.warehouse.root}/{ASIDE}/{self.table}")

    @property
    def staging_settings(self) -> "Settings":
        return replace(self.settings, warehouse=self.staging.root)

    def build_and_switch(
        self, schemas: "SchemaSource | None", progress: Callable[[RunResult], None], skips: SkipsWanted
    ) -> RunResult:
        """Build the table aside until it holds what the topic does, and put it in the place of the live one."""
        for _ in range(ATTEMPTS_MAX):
            last = None
            while last is None or not last.skipped:
                last = materialize(
                    self.declaration,
                    self.staging_settings,
                    self.spark,
                    schemas=schemas,
                    contract=self.contract,
                    records_max=RECORDS_MAX,
                    skip=skips,
                    erased_in=self.warehouse,
                )
                progress(last)
            done = self.to_live(self.switch)
            if done is not None:
                self.remove_staging()
                return done
        raise OvertakenError(self.table, ATTEMPTS_MAX, doing="rebuild")

    def write_pipeline(self) -> RunResult:
        """Write the table of a pipeline again, whatever it was made from."""
        is_new = TableLog(self.spark, self.path).newest_version() is None
        done = materialize_pipeline(self.declaration, self.warehouse, self.spark, self.say, rebuild=True)
        if is_new:
            register_table(self.spark, self.table, self.path)
        return done

    def to_live(self, commit: Callable[[], Result]) -> Result:
        """Commit to the live table; where its log is broken, to a new one, and what is left of it is moved away."""
        try:
            with explain_failures(self.table, self.path):
                return commit()
        except BrokenLogError as error:
            if folder_of(error.file) != plain_path(self.path):
                raise
            kept = self._move_away()
            self.say(f"{error.file} {error.problem}; what was left of {self.table} is in {kept}")
        with explain_failures(self.table, self.path):
            return commit()

    @property
    def path(self) -> str:
        return self.warehouse.path(self.table)

    def is_staging(self, error: TableFileError) -> bool:
        """Whether a damaged file is of the table that is being built, not of the live one or of another."""
        return folder_of(error.file) == plain_path(self.staging.path(self.table))

    def _move_away(self) -> str:
        root = f"{self.warehouse.root}/{BROKEN}"
        kept = f"{root}/{self.table}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        if (local := self.warehouse.local) is not None:
            (local / BROKEN).mkdir(exist_ok=True)
            Path(plain_path(self.path)).rename(plain_path(kept))
        else:
            assert self.spark._jvm is not None
            path_of = self.spark._jvm.org.apache.hadoop.fs.Path
            system = path_of(root).getFileSystem(self.spark._jsc.hadoopConfiguration())
            system.mkdirs(path_of(root))
            if not system.rename(path_of(self.path), path_of(kept)):
                raise TableError(f"{self.path} cannot be moved to {kept}: move it away, and rebuild {self.table} again")
        self._forget_log(self.path)
        return kept

    def _forget_log(self, path: str) -> None:
        if not is_client(self.spark):
            forget_log(self.spark, path)

    def check_not_adopted(self) -> None:
        log = TableLog(self.spark, self.path)
        live = next(filter(None, map(Stamp.of, log.whole_commits())), None)
        if live is not None and live.adopted:
            raise TableError(
                f"{self.table} was adopted with rows that are not of {live.topic}, and would lose them: "
                "--from-what-is-left builds it from the topic alone all the same"
            )

    def skipped_before(self, bounds: TopicBounds) -> Skips:
        """The records of the topic that the live table leaves out because a user said so."""
        live = next(filter(None, map(Stamp.of, TableLog(self.spark, self.path).whole_commits())), None)
        return {} if live is None or live.topic_id != bounds.topic_id else live.skipped

    def check_beginning(self, bounds: TopicBounds) -> None:
        starts = {partition: start for partition, start in bounds.starts.items() if start > 0}
        if starts:
            raise IncompleteLogError(self.table, bounds.topic, starts)

    def drop_what_was_built_otherwise(self, bounds: TopicBounds, skips: Skips) -> None:
        """Remove what an earlier rebuild left aside, when this one cannot go on with it."""
        log = TableLog(self.spark, self.staging.path(self.table))
        try:
            stamp = read_position(log, self.table).stamp
        except TableError:
            self.remove_staging()
            return
        if stamp is not None and (stamp.definition, stamp.topic, stamp.topic_id, stamp.skipped) != (
            definition_of(self.declaration),
            bounds.topic,
            bounds.topic_id,
            skips,
        ):
            self.remove_staging()

    def switch(self) -> RunResult | None:
        """Replace the live rows by those aside in one commit; None when another run was in the table meanwhile."""
        path = self.path
        stamps = [*filter(None, map(Stamp.of, TableLog(self.spark, self.staging.path(self.table)).newest_first()))]
        built, first = stamps[0], stamps[-1]
        log = TableLog(self.spark, path)
        log.check()
        version = log.newest_version()
        live = _newest_stamp(log)
        if version is not None and live is None:
            raise TableError(f"{path} holds a Delta table that no run of fluvial wrote: move it away, and run again")
        if live is not None and live.topic_id == built.topic_id and _is_ahead(live, built):
            return None
        # After the live table's version: an erasure from here on conflicts with the switch.
        if read_erasures(self.spark, self.warehouse.root, built.topic, built.topic_id).after(built.erased):
            return None
        stamp = replace(
            built,
            batch=1 if live is None else live.batch + 1,
            offsets={number: (first.offsets.get(number, (0, 0))[0], end) for number, (_, end) in built.offsets.items()},
            removed=0,
            run=new_run_id(),
        )
        rows = self.spark.read.format("delta").load(self.staging.path(self.table))
        properties = {} if isinstance(self.declaration, History) else KEYED_TABLE
        commit = commit_once(log, stamp, above=version, write=lambda: replace_table(rows, path, stamp, properties))
        if commit is None:
            return None
        if version is None:
            register_table(self.spark, self.table, path)
        return self._done(commit, stamp, version)

    def _done(self, commit: Commit, stamp: Stamp, version: int | None) -> RunResult:
        return RunResult(
            table=self.table,
            kind=self.declaration.kind,
            skipped=False,
            version_before=version,
            version_after=commit.version,
            offsets=stamp.offsets,
            rows=commit.metric("numOutputRows"),
        )

    def remove_staging(self) -> None:
        self._forget_log(self.staging.path(self.table))
        local = self.staging.local
        if local is not None:
            shutil.rmtree(local, ignore_errors=True)
            return
        assert self.spark._jvm is not None
        path = self.spark._jvm.org.apache.hadoop.fs.Path(self.staging.root)
        path.getFileSystem(self.spark._jsc.hadoopConfiguration()).delete(path, True)


def _newest_stamp(log: TableLog) -> Stamp | None:
    return next(filter(None, map(Stamp.of, log.newest_first())), None)


def _is_ahead(live: Stamp, built: Stamp) -> bool:
    """Whether the live table has read beyond what was built: it was brought up to date in between."""
    return any(end > built.offsets.get(partition, (0, 0))[1] for partition, (_, end) in live.offsets.items())
