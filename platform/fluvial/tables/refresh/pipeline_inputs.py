"""
What a pipeline is made from: the newest versions of its inputs and its code, and the frames that the transform gets.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import InputVersion, MartStamp
from fluvial.delta.stamp import Stamp
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.co_partitioning import check_counts
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.declare.source_code import source_digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def wanted_stamp(declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession | None") -> MartStamp:
    """
    What a commit made now would say of itself. Raises TableError for an input that is not there.
    """
    inputs = {table: _newest(declaration, table, warehouse, spark) for table in declaration.inputs}
    if declaration.co_partitioned:
        check_counts(declaration, _partitions(declaration, warehouse, spark))
    return stamp_at(declaration, inputs)


def stamp_at(declaration: Pipeline, inputs: Mapping[str, Commit]) -> MartStamp:
    """
    What a commit would say of itself that is made of the inputs as these commits left them.
    """
    return MartStamp(
        pipeline=declaration.name,
        code=code_version(declaration),
        # A version number comes again when a table is removed and built again; the commit's own id does not.
        inputs={table: InputVersion(version=each.version, commit=each.txn_id) for table, each in inputs.items()},
        key=_key(declaration),
    )


def _key(declaration: Pipeline) -> dict[str, Any] | None:
    """How the key is declared, and the windows that it is of."""
    if not declaration.key:
        return None
    paths = {table: None if path is None else list(path) for table, path in declaration.paths.items()}
    key: dict[str, Any] = {"columns": list(declaration.key), "paths": paths}
    if declaration.windows:
        key["windows"] = {table: str(each) for table, each in declaration.windows.items()}
    return key


def code_version(declaration: Pipeline) -> str:
    """
    The declared version, or a fingerprint of the transform and of what it uses in the project's modules.
    """
    if declaration.version is not None:
        return declaration.version
    try:
        return source_digest(declaration.transform)
    except (OSError, TypeError) as error:
        raise DeclarationError(
            f'pipeline("{declaration.name}"): its source text cannot be read, so a change of it would go unseen: give '
            'it version="1" and count up'
        ) from error


def read_input(spark: "SparkSession", path: str, version: int) -> "DataFrame":
    """
    The rows of a version of a table.
    """
    return spark.read.format("delta").option("versionAsOf", version).load(path)


def transformed(declaration: Pipeline, frames: list["DataFrame"]) -> "DataFrame":
    """
    What the transform returns; nothing is read yet. Raises DeclarationError where it does not fit its inputs.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame as AnyFrame

    try:
        answer: Any = declaration.transform(*frames)
    except AnalysisException as error:
        line = str(error).strip().splitlines()[0]
        raise DeclarationError(f'pipeline("{declaration.name}") does not fit its inputs: {line}') from error
    if not isinstance(answer, AnyFrame):
        raise DeclarationError(
            f'pipeline("{declaration.name}") returned {type(answer).__name__}: a transform returns a DataFrame'
        )
    return answer


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
    wanted = declaration.pinned.get(table, version)
    if wanted > version:
        raise TableError(
            f'pipeline("{declaration.name}") reads version {wanted} of {table}, whose newest is {version}: pin it to '
            "one that is there"
        )
    return _pinned(declaration, table, log, wanted)


def _pinned(declaration: Pipeline, table: str, log: TableLog, version: int) -> Commit:
    """The commit that made a version. Raises TableError where the log no longer has it."""
    if table in declaration.pinned and version not in {
        commit.version for commit in log.newest_first(above=version - 1)
    }:
        raise TableError(
            f'pipeline("{declaration.name}"): the log of {table} no longer has version {version}, to which it is '
            "pinned: pin it to a later one"
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
