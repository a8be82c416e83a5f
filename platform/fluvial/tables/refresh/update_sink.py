"""
The sink of a streaming query in update mode: the rows of a batch take the place of the table's rows of the same keys.

They are replaced in one Delta commit, which Delta counts by the checkpoint and the number of the batch. So a batch that
Spark gives again, as it had not noted in its checkpoint that the batch was committed, finds it there and changes
nothing.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, commit_once
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import BatchStamp
from fluvial.delta.row_swap import (
    DELTA_VERSIONS,
    FILE,
    ROW,
    WRITTEN,
    can_swap,
    holds_batch,
    located,
    swap_located,
    swap_rows,
    takes_swaps,
)
from fluvial.errors import FluvialError
from fluvial.spark.connect import parallelism
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.plan.changed_keys import ChangedKeys, keys_of_rows
from fluvial.tables.refresh.key_plan import ROWS_HERE_MAX
from fluvial.tables.refresh.part_refresh import KEYS_A_FILE
from fluvial.tables.refresh.rows_here import TableHere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSink:
    """
    The sink of one run of a query with a key, whose table at `path` is there; `failures` has what stopped the query.
    """

    declaration: Pipeline
    path: str
    checkpoint: str
    failures: list[FluvialError] = field(default_factory=list)

    def put(self, batch: "DataFrame", number: int) -> None:
        """
        Put a batch into the table, once; Spark calls it, and stops the query where it raises.
        """
        try:
            self._put(batch, BatchStamp(pipeline=self.declaration.name, checkpoint=self.checkpoint, batch=number))
        except FluvialError as error:
            # Spark gives its text only.
            self.failures.append(error)
            raise

    def _put(self, batch: "DataFrame", stamp: BatchStamp) -> None:
        session = batch.sparkSession
        rows = batch.persist()
        try:
            # All of it, also where the table has the batch: what the query remembers is written as its rows are made.
            count = rows.count()
            self._check(session, rows)
            for _ in range(ATTEMPTS_MAX):
                if not count or holds_batch(session, self.path, stamp):
                    return
                if self._is_committed(session, rows, stamp, count):
                    return
        finally:
            rows.unpersist()
        raise OvertakenError(self.declaration.table, ATTEMPTS_MAX)

    def _check(self, session: "SparkSession", rows: "DataFrame") -> None:
        if not takes_swaps(session, self.path):
            raise TableError(
                f"{self.declaration.table}: rows are replaced by a key in tables with deletion vectors and by Delta "
                f"{', '.join(sorted(DELTA_VERSIONS))}, which fluvial was tested with: install that one"
            )
        if not can_swap(session, self.path, rows):
            raise TableError(
                f"{self.declaration.table}: the query returns other columns than the table has: `fluvial table rebuild "
                f"{self.declaration.table}` replays its inputs from their beginning"
            )

    def _is_committed(self, session: "SparkSession", rows: "DataFrame", stamp: BatchStamp, count: int) -> bool:
        log = TableLog(session, self.path)
        version = log.newest_version()
        assert version is not None, "a stream begins with a commit"
        keys = keys_of_rows(rows, self._steps, few=count <= ROWS_HERE_MAX)
        try:
            commit = commit_once(
                log, stamp, above=version, write=lambda: self._swap(session, rows, keys, version=version, stamp=stamp)
            )
        finally:
            keys.frame.unpersist()
        return commit is not None

    @property
    def _steps(self) -> list[str]:
        return [f"`{column}`" for column in self.declaration.key]

    def _swap(
        self, session: "SparkSession", rows: "DataFrame", keys: ChangedKeys, *, version: int, stamp: BatchStamp
    ) -> None:
        table = located(session, self.path, version)
        columns = [f"`{name}`" for name in table.columns if name not in {FILE, ROW}]
        files = max(1, min(parallelism(session), keys.keys // KEYS_A_FILE))
        places = TableHere(session=session, path=self.path, version=version, key=self.declaration.key).places(keys)
        if places is not None:
            stamp = replace(stamp, removed=sum(map(len, places.values())))
            swap_rows(session, self.path, rows.select(*columns), places, version=version, stamp=stamp, files=files)
            return
        old = keys.of(table, self._steps).selectExpr(*columns, FILE, ROW, f"false AS {WRITTEN}")
        nowhere = (f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}")
        came = rows.selectExpr(*columns, *nowhere, f"true AS {WRITTEN}")
        swap_located(session, self.path, came.unionAll(old), version=version, stamp=stamp, files=files)
