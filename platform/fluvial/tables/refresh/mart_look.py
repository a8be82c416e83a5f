"""
One look at a pipeline's table and at the logs of its inputs, which each way of refreshing it is planned from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import Made, MartStamp, newest_made
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh.obstacles import obstacle
from fluvial.tables.refresh.pipeline_inputs import wanted_stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class MartLook:
    """
    What there is, read when it is first asked for and once, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    @cached_property
    def wanted(self) -> MartStamp:
        """
        What a commit made now would say of itself. Raises TableError for an input that is not there.
        """
        return wanted_stamp(self.declaration, self.warehouse, self.session)

    @cached_property
    def log(self) -> TableLog:
        """
        The table's log.
        """
        return TableLog(self.session, self.warehouse.path(self.declaration.table))

    @cached_property
    def before(self) -> int | None:
        """
        The table's version, None while there is no table.
        """
        return self.log.newest_version()

    @cached_property
    def made(self) -> Made | None:
        """
        The newest commit that a pipeline made, up to that version, None where there is none.
        """
        return None if self.before is None else newest_made(self.log, until=self.before)

    @property
    def since(self) -> MartStamp:
        """
        The stamp that changes are looked for from; where there is no :meth:`obstacle` there is one.
        """
        assert self.made is not None, "there is no obstacle"
        return self.made.stamp

    @cached_property
    def input_logs(self) -> Mapping[str, TableLog]:
        """
        The log of each input.
        """
        return {table: TableLog(self.session, self.warehouse.path(table)) for table in self.declaration.inputs}

    def obstacle(self) -> str | None:
        """
        Why the full query must run, as far as it is known before changes are looked at.
        """
        return obstacle(self.session, self.log, self.made, self.before, self.wanted)


def refreshed(declaration: Pipeline, wanted: MartStamp, before: int | None, commit: Commit) -> RunResult:
    """
    What a refresh has done that brought a table from version `before` to the inputs of `wanted` by a commit.
    """
    stamp = MartStamp.of(commit)
    return RunResult(
        table=declaration.table,
        kind=declaration.kind,
        skipped=False,
        version_before=before,
        version_after=commit.version,
        inputs={table: each.version for table, each in wanted.inputs.items()},
        rows=commit.metric("numOutputRows") + (0 if stamp is None else stamp.removed),
        bytes=commit.metric("numOutputBytes"),
        late_rows=None if stamp is None or stamp.watermarks is None else stamp.watermarks.rows,
    )
