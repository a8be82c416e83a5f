"""
Tables kept up to date by one long run, for as long as it is let.

Batches follow their topics within a second, without the start of a Spark session for each. Every batch is shown on the
page as a materialisation of its table as soon as it is committed; ending the run lets the batch under way finish.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg
from dagster_shared.check import CheckError

from fluvial.errors import FluvialError
from fluvial.orchestration.assets.graph import asset_key
from fluvial.orchestration.assets.metadata import run_metadata
from fluvial.orchestration.assets.sources import completed
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.quality import RunningChecks, Suite
from fluvial.quality.running import Checked
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration

if TYPE_CHECKING:
    from fluvial.tables.plan.result import RunResult

# A batch comes within a second of the last one; the windows that are complete by it are looked for less often.
WINDOWS_EVERY_SECONDS = 60.0

Work = Callable[[threading.Event], Mapping[str, FluvialError]]


def continuous_job(
    declarations: Mapping[str, Declaration], *, suites: Sequence[Suite] = (), name: str = "continuous"
) -> dg.JobDefinition:
    """
    Return the job that keeps tables up to date until it is terminated, from the page or with SIGTERM.

    `suites` are evaluated on the rows that came; one that is blocking stops its table, and what reads it waits. The job
    fails once a table has been given up, after the others; a cluster that does not answer is waited for.
    """

    @dg.op(name=f"{name}_tables", description=f"Follows the topics of {', '.join(declarations)}.")
    def follow_tables(context: dg.OpExecutionContext, spark: SparkResource) -> None:
        errors = until_interrupted(lambda stop: _follow(context, spark, declarations, suites, stop))
        if errors:
            raise dg.Failure("; ".join(f"{table}: {error}" for table, error in errors.items()), allow_retries=False)

    @dg.job(
        name=name, description="Keeps tables up to date for as long as it runs.", executor_def=dg.in_process_executor
    )
    def continuous() -> None:
        follow_tables()

    return continuous


def until_interrupted(work: Work) -> Mapping[str, FluvialError]:
    """
    Do `work` in a thread beside this one, and return what it returns.

    When this thread is interrupted the work is told to stop and waited for, and then the interruption goes on its way.
    """
    stop, ended = threading.Event(), threading.Event()
    done: list[Mapping[str, FluvialError]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work(stop))
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    worker = threading.Thread(target=run, name="fluvial-continuous")
    try:
        worker.start()
        # Not `join`: a thread whose join was interrupted counts as ended from then on, though it works.
        while not ended.wait(0.2):
            pass
    finally:
        stop.set()
        if worker.ident is not None:
            ended.wait()
    if failed:
        raise failed[0]
    return done[0]


def _follow(
    context: dg.OpExecutionContext,
    spark: SparkResource,
    declarations: Mapping[str, Declaration],
    suites: Sequence[Suite],
    stop: threading.Event,
) -> Mapping[str, FluvialError]:
    from fluvial.tables.drive.continuous import Watcher, follow

    shown: dict[str, float] = {}

    def on_batch(result: "RunResult") -> None:
        context.instance.report_runless_asset_event(batch_event(result, context.run_id))
        partitions, now = _partitions_of(context, asset_key(result.table)), time.monotonic()
        if partitions is None or now - shown.get(result.table, -math.inf) < WINDOWS_EVERY_SECONDS:
            return
        shown[result.table] = now
        for event in completed(context.instance, partitions, declarations[result.table], spark.settings, result):
            context.instance.report_runless_asset_event(event)

    watcher = Watcher(
        batch=on_batch,
        waiting=context.log.warning,
        stopped=lambda table, error: context.log.error(f"{table} stopped: {error}"),
    )

    def on_checked(checked: Checked) -> None:
        if checked.sentence:
            context.log.warning(f"{checked.suite.table}: suite {checked.suite.name}: {checked.sentence}")

    warehouse = Warehouse.at(spark.settings.warehouse)
    checks = RunningChecks(suites, warehouse, spark.session, on_checked=on_checked, say=context.log.warning)
    with spark.settings.registry.client() as schemas, checks:
        return follow(
            list(declarations.values()),
            spark.settings,
            spark.session,
            stop,
            schemas=schemas,
            watcher=watcher,
            checks=checks if suites else None,
        )


def _partitions_of(context: dg.OpExecutionContext, key: dg.AssetKey) -> dg.PartitionsDefinition | None:
    """What the code location says of an asset; a run within the process that defines it knows no location."""
    try:
        graph = context.repository_def.asset_graph
    except CheckError:
        return None
    return graph.get(key).partitions_def if graph.has(key) else None


def batch_event(result: "RunResult", run_id: str | None = None) -> dg.AssetMaterialization:
    """Return what the page shows of one batch of a long run, or of a run that is none of Dagster's."""
    metadata = run_metadata(result, lag=None)
    if run_id is not None:
        metadata["run"] = dg.MetadataValue.dagster_run(run_id)
    tags = {"dagster/data_version": f"delta-{result.version_after}"}
    return dg.AssetMaterialization(asset_key=asset_key(result.table), metadata=metadata, tags=tags)
