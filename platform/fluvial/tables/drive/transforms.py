"""
Bringing a pipeline's table up to date: read its inputs at fixed versions, write the answer in one commit.

The commit says which version of each input it was made from, and a fingerprint of the code; a run that would say the
same again is left out.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.stamp import Stamp, new_run_id
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.co_partitioning import check_counts
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.plan.result import RunResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def materialize_pipeline(
    declaration: Pipeline,
    warehouse: Warehouse,
    spark: "SparkSession",
    say: Callable[[str], None],
    *,
    rebuild: bool = False,
) -> RunResult:
    """
    Write `marts.<name>` again, unless its inputs and its code are those of its newest commit; with `rebuild` always.
    """
    log = TableLog(spark, warehouse.path(declaration.table))
    log.check()
    wanted, versions = _wanted(declaration, warehouse, spark)
    before = log.newest_version()
    skipped = None if rebuild else _skipped(declaration, log, wanted, versions)
    if skipped is not None:
        return skipped
    say(f"{declaration.table}: from {', '.join(f'{table} version {version}' for table, version in versions.items())}")
    frames = [_read(spark, warehouse.path(table), version) for table, version in versions.items()]
    answer = _transformed(declaration, frames)
    run = new_run_id()
    metadata = json.dumps({"fluvial": {**wanted, "run": run}})
    (
        answer.write.format("delta")
        .mode("overwrite")
        .option("overwriteSchema", "true")
        .option("userMetadata", metadata)
        .save(log.path)
    )
    for commit in log.newest_first(above=-1 if before is None else before):
        if ((commit.user_metadata or {}).get("fluvial") or {}).get("run") == run:
            return RunResult(
                table=declaration.table,
                kind=declaration.kind,
                skipped=False,
                version_before=before,
                version_after=commit.version,
                inputs=versions,
                rows=commit.metric("numOutputRows"),
                bytes=commit.metric("numOutputBytes"),
            )
    raise TableError(f"{declaration.table}: the commit is not in the table's log {log.path}")


def skipped_pipeline(declaration: Pipeline, warehouse: Warehouse) -> RunResult | None:
    """
    The result of a run that has nothing to do; None where there is something. The warehouse is on this machine.

    Raises as :func:`materialize_pipeline` does before it reads.
    """
    log = TableLog(None, warehouse.path(declaration.table))
    log.check()
    return _skipped(declaration, log, *_wanted(declaration, warehouse, None))


def _wanted(
    declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession | None"
) -> tuple[dict[str, Any], dict[str, int]]:
    """What a commit made now would say of itself, and the version of each input."""
    inputs = {table: _newest(declaration, table, warehouse, spark) for table in declaration.inputs}
    if declaration.co_partitioned:
        check_counts(declaration, _partitions(declaration, warehouse, spark))
    wanted = {
        "pipeline": declaration.name,
        "code": code_version(declaration),
        # A version number comes again when a table is removed and built again; the commit's own id does not.
        "inputs": {table: {"version": commit.version, "commit": commit.txn_id} for table, commit in inputs.items()},
    }
    return wanted, {table: commit.version for table, commit in inputs.items()}


def _skipped(
    declaration: Pipeline, log: TableLog, wanted: dict[str, Any], versions: dict[str, int]
) -> RunResult | None:
    before = log.newest_version()
    if before is None or _stamp(log, above=-1) != wanted:
        return None
    return RunResult(
        table=declaration.table,
        kind=declaration.kind,
        skipped=True,
        version_before=before,
        version_after=before,
        inputs=versions,
    )


def code_version(declaration: Pipeline) -> str:
    """
    The declared version, or a fingerprint of the text of the module that holds the transform.
    """
    if declaration.version is not None:
        return declaration.version
    module = sys.modules.get(declaration.transform.__module__)
    try:
        text = inspect.getsource(module or declaration.transform)
    except (OSError, TypeError) as error:
        raise DeclarationError(
            f'pipeline("{declaration.name}"): its source text cannot be read, so a change of it would go unseen: give '
            'it version="1" and count up'
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _newest(declaration: Pipeline, table: str, warehouse: Warehouse, spark: "SparkSession | None") -> Commit:
    log = TableLog(spark, warehouse.path(table))
    log.check()
    version = log.newest_version()
    if version is None:
        known = ", ".join(warehouse.tables(spark)) or "none yet"
        raise TableError(
            f'pipeline("{declaration.name}") reads {table}, which does not exist: '
            f"materialize it first (tables: {known})"
        )
    return log.commit(version)


def _partitions(declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession | None") -> dict[str, int]:
    """How many partitions the topics of the inputs had when these were last brought up to date."""
    found = {}
    for table in declaration.inputs:
        stamps = map(Stamp.of, TableLog(spark, warehouse.path(table)).newest_first())
        stamp = next(filter(None, stamps), None)
        if stamp is None:
            raise DeclarationError(
                f'pipeline("{declaration.name}"): co_partitioned compares the topics of its inputs, and no run of '
                f"fluvial made {table} from one: leave it out"
            )
        found[stamp.topic] = len(stamp.offsets)
    return found


def _stamp(log: TableLog, *, above: int) -> dict[str, Any] | None:
    """What the newest commit that a pipeline made says of itself, without its run."""
    for commit in log.newest_first(above=above):
        body = (commit.user_metadata or {}).get("fluvial")
        if isinstance(body, dict):
            return {name: value for name, value in body.items() if name != "run"}
    return None


def _read(spark: "SparkSession", path: str, version: int) -> "DataFrame":
    return spark.read.format("delta").option("versionAsOf", version).load(path)


def _transformed(declaration: Pipeline, frames: list["DataFrame"]) -> "DataFrame":
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame as AnyFrame

    try:
        answer = declaration.transform(*frames)
    except AnalysisException as error:
        line = str(error).strip().splitlines()[0]
        raise DeclarationError(f'pipeline("{declaration.name}") does not fit its inputs: {line}') from error
    if not isinstance(answer, AnyFrame):
        raise DeclarationError(
            f'pipeline("{declaration.name}") returned {type(answer).__name__}: a transform returns a DataFrame'
        )
    return answer
