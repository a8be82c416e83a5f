"""
One run of a streaming query of the user's: what has come to its inputs since the last run goes through it, and it ends.

The checkpoint is a folder of the warehouse that the table's stamps name; it fits one version of the code. A table
begins with an empty commit that names a new one. The query's own commits are counted by Delta, so that a batch that is
tried again changes nothing, and the run ends with a commit that says up to which versions the inputs were read. A
run that is killed leaves batches and checkpoint, and the next one goes on with the batch that is not committed.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluvial.delta.commit import KEYED_TABLE, TABLE, commit_once, replace_table
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh, newest_made
from fluvial.delta.stamp import new_run_id
from fluvial.delta.upkeep import compact_files, write_checkpoint
from fluvial.spark.connect import is_client, session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.plan.by_value import by_value
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh.pipeline_inputs import transformed, wanted_stamp
from fluvial.tables.refresh.update_sink import UpdateSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHECKPOINTS = "_checkpoints"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# What Spark says of a checkpoint whose operators, state or sources are others than the query's.
_UNFIT = ("STATE_STORE_", "STDS_", "STATEFUL_PROCESSOR", "checkpoint", "Checkpoint", "STREAMING_STATEFUL_OPERATOR")
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): .")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """
    A run of one declared query, in a session of its own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"
    say: Callable[[str], None]

    def run(self, *, rebuild: bool) -> RunResult:
        """
        Bring the table up to date; with `rebuild` from the beginning of its inputs.

        Raises DeclarationError where the checkpoint does not fit the code, TableError where it is gone.
        """
        wanted = wanted_stamp(self.declaration, self.warehouse, self.session)
        before, began_ms = self.log.newest_version(), time.time_ns() // 1_000_000
        rows = self._answer()
        stamp = self._begun(wanted, rows, rebuild=rebuild)
        self._stream(rows, stamp)
        refresh = Refresh(road="stream", reason=None, began_ms=began_ms)
        commit = self._committed(replace(wanted, checkpoint=stamp.checkpoint, refresh=refresh), rows)
        write_checkpoint(self.session, self.log.path)
        compact_files(self.session, self.log.path)
        own = [each for each in self.log.newest_first(above=-1 if before is None else before)
               if each.version <= commit.version]  # fmt: skip
        return RunResult(
            table=self.declaration.table,
            kind=self.declaration.kind,
            skipped=False,
            version_before=before,
            version_after=commit.version,
            inputs={table: each.version for table, each in wanted.inputs.items()},
            rows=sum(each.metric("numOutputRows") for each in own),
            bytes=sum(each.metric("numOutputBytes") for each in own),
        )

    @property
    def log(self) -> TableLog:
        """
        The table's log.
        """
        return TableLog(self.session, self.warehouse.path(self.declaration.table))

    def _answer(self) -> "DataFrame":
        frames = [
            self.session.readStream.format("delta").load(self.warehouse.path(table))
            for table in self.declaration.inputs
        ]
        with by_value(self.declaration.transform):
            rows = transformed(self.declaration, frames)
        if not rows.isStreaming:
            raise DeclarationError(
                f'streaming("{self.declaration.name}") returned a frame that is no stream: make it of its inputs, or '
                "declare a pipeline"
            )
        lacking = [column for column in self.declaration.key if column not in rows.columns]
        if lacking:
            raise DeclarationError(
                f'streaming("{self.declaration.name}") returned no column {lacking[0]}, which its key names: '
                f"{', '.join(rows.columns)}"
            )
        return rows

    def _begun(self, wanted: MartStamp, rows: "DataFrame", *, rebuild: bool) -> MartStamp:
        """The stamp that names the checkpoint to go on with; a table that begins gets one."""
        table, made = self.declaration.table, newest_made(self.log)
        if made is None or rebuild or made.stamp.checkpoint is None:
            stamp = replace(wanted, inputs={}, checkpoint=new_run_id())
            nothing = self.session.createDataFrame([], rows.schema)
            properties = KEYED_TABLE if self.declaration.key else TABLE
            commit = self._commit(
                stamp, lambda own: replace_table(nothing, self.log.path, own, properties), self.log.newest_version()
            )
            if commit is None:
                raise OvertakenError(table, 1)
            self.say(f"{table}: from the beginning of its inputs")
            return stamp
        stamp = made.stamp
        if stamp.code != wanted.code:
            raise DeclarationError(
                f"{table}: its checkpoint was made by other code ({stamp.code}, now {wanted.code}): `fluvial table "
                f"rebuild {table}` replays its inputs from their beginning; if what the query remembers is the same, "
                f'declare it with version="{stamp.code}"'
            )
        if stamp.key != wanted.key:
            raise DeclarationError(
                f"{table}: its rows were made with another key or output mode: `fluvial table rebuild {table}` replays "
                "its inputs from their beginning"
            )
        if not self._exists(stamp):
            raise TableError(
                f"{table}: its checkpoint {self._checkpoint(stamp)} is gone: `fluvial table rebuild {table}` replays "
                "its inputs from their beginning"
            )
        return stamp

    def _stream(self, rows: "DataFrame", stamp: MartStamp) -> None:
        from pyspark.errors import StreamingQueryException

        query, sink = self._started(rows, stamp)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if sink is not None and sink.failures:
                raise sink.failures[0] from error
            said = _said(str(error))
            line = _reason(said)
            if any(mark in each for mark in _UNFIT for each in said):
                raise DeclarationError(
                    f"{self.declaration.table}: the query does not fit its checkpoint ({line}): `fluvial table rebuild "
                    f"{self.declaration.table}` replays its inputs from their beginning"
                ) from error
            raise TableError(f"{self.declaration.table}: the query stopped: {line}") from error
        finally:
            # An interrupt ends the wait, not the query.
            query.stop()

    def _started(self, rows: "DataFrame", stamp: MartStamp) -> "tuple[StreamingQuery, UpdateSink | None]":
        """The query, and the sink that is ours: Delta's own adds rows and replaces the whole, and no single ones."""
        assert stamp.checkpoint is not None, "a stream has begun with one"
        mode, where = self.declaration.output_mode or "append", self._checkpoint(stamp)
        writer = rows.writeStream.outputMode(mode).option("checkpointLocation", where)
        writer = writer.queryName(self.declaration.table).trigger(availableNow=True)
        if mode != "update":
            return writer.format("delta").start(self.log.path), None
        sink = UpdateSink(declaration=self.declaration, path=self.log.path, checkpoint=stamp.checkpoint)
        return writer.foreachBatch(sink.put).start(), sink

    def _committed(self, stamp: MartStamp, rows: "DataFrame") -> Commit:
        """Say up to where the inputs are in the table, in a commit that adds no row."""
        nothing: Any = self.session.createDataFrame([], rows.schema).write.format("delta").mode("append")

        def write(own: MartStamp) -> None:
            options = {"txnAppId": own.app_id, "txnVersion": str(own.batch), "userMetadata": own.as_json()}
            nothing.options(**options).save(self.log.path)

        commit = self._commit(stamp, write, self.log.newest_version())
        if commit is None:
            raise OvertakenError(self.declaration.table, 1)
        return commit

    def _commit(self, stamp: MartStamp, write: Callable[[MartStamp], None], before: int | None) -> Commit | None:
        own = replace(stamp, batch=0 if before is None else before + 1)
        return commit_once(self.log, own, above=before, write=lambda: write(own))

    def _checkpoint(self, stamp: MartStamp) -> str:
        return f"{self.warehouse.root}/{CHECKPOINTS}/{self.declaration.table}/{stamp.checkpoint}"

    def _exists(self, stamp: MartStamp) -> bool:
        """Whether there is a checkpoint, or none yet as the query has not run with it."""
        assert self.session._jvm is not None
        path = self.session._jvm.org.apache.hadoop.fs.Path(self._checkpoint(stamp))
        system = path.getFileSystem(self.session._jsc.hadoopConfiguration())
        return bool(system.exists(path)) or not stamp.inputs


def _said(text: str) -> list[str]:
    """The lines of an error of a query, without its plan and the code in tracebacks, in which a user's words stand."""
    lines = text.strip().partition("=== Streaming Query ===")[0].splitlines()
    return [line for line in lines if line.strip() and not line[0].isspace()]


def _reason(said: list[str]) -> str:
    """The line that says what went wrong: the last one of tracebacks of Python's, or else the first."""
    found = [line.strip() for line in said if _PYTHON_ERROR.match(line)]
    return found[-1] if found else said[0]


def run_stream(
    declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession", say: Callable[[str], None], *, rebuild: bool
) -> RunResult:
    """
    Run a declared streaming query over what has come to its inputs.
    """
    if is_client(spark):
        raise DeclarationError(f"{declaration.table}: a streaming query runs in a session of its own, not by Connect")
    with session_of_its_own(spark) as session:
        # transformWithState needs it, and state that outgrows the memory too.
        session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
        return StreamRun(declaration=declaration, warehouse=warehouse, session=session, say=say).run(rebuild=rebuild)
