"""
Bringing an aggregate up to date from the rows that came to its input and went, and its own rows of their keys.

The keys whose rows cannot be told from these (a minimum that went) are computed again from the input's rows of these
keys, in the same commit. Where reading them would cost more than the full query, that runs.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import commit_once
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh
from fluvial.delta.row_swap import CHANGE, FILE, ROW, WRITTEN, located, swap_located, swap_persisted
from fluvial.spark.connect import parallelism
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.aggregates import CHANGED, ROWS, Aggregation
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.drive.key_plan import ROWS_HERE_MAX, Plan
from fluvial.tables.drive.pipeline_inputs import read_input, transformed
from fluvial.tables.drive.windowed_inputs import WindowedInputs
from fluvial.tables.plan.changed_keys import ChangedKeys, explain_lost_changes, keys_of, keys_of_rows, read_changes
from fluvial.tables.plan.refresh_cost import Work, why_full

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS_A_FILE = 100_000
"""Of so many changed keys a refresh writes one more file."""
_AGAIN = "_again"
_WEIGHT = f"CASE {CHANGE} WHEN 'insert' THEN 1L WHEN 'delete' THEN -1L END"


class CostlyError(Exception):
    """
    The full query is cheaper than what was found to be necessary; the text says why.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRefresh:
    """
    A refresh of an aggregate from the rows that changed since the stamp of `plan`, in a session of the table's own.
    """

    declaration: Pipeline
    aggregation: Aggregation
    warehouse: Warehouse
    session: "SparkSession"
    plan: Plan
    since: MartStamp
    work: Work
    inputs: WindowedInputs

    def carry_out(self, answer: "DataFrame", began_ms: int) -> Commit | None:
        """
        Replace the rows of the keys that changed in one commit; None where another writer was first. `answer` is the
        batch query, which is not run.

        Raises :class:`~fluvial.tables.plan.changed_keys.UnreadableChangesError` and :class:`CostlyError` where the full
        query must run; nothing is written then.
        """
        changes = self._changes().persist()
        try:
            with explain_lost_changes():
                keys, rows = changes.selectExpr("count(*)", f"coalesce(sum({CHANGED}), 0)").collect()[0]
            changed = ChangedKeys(frame=keys_of(changes, self._key), keys=keys, rows=rows)
            merged = self._merged(changes, changed, answer).persist()
            try:
                return self._swap(merged, changed, began_ms)
            finally:
                merged.unpersist()
        finally:
            changes.unpersist()

    @property
    def _key(self) -> list[str]:
        return [f"`{column}`" for column in self.declaration.key]

    @property
    def _version(self) -> int:
        assert self.plan.before is not None, "rows are replaced in a table that is there"
        return self.plan.before

    def _changes(self) -> "DataFrame":
        (table,) = self.declaration.inputs
        log = TableLog(self.session, self.warehouse.path(table))
        since, until = self.since.inputs[table].version, self.plan.wanted.inputs[table].version
        only_came = not any("remove" in log.data_changes(version) for version in range(since + 1, until + 1))
        changes = self.inputs.keyed(table, read_changes(self.session, log, table, since, until))
        return self.aggregation.changed_parts(changes, _WEIGHT, only_came=only_came)

    def _merged(self, changes: "DataFrame", changed: ChangedKeys, answer: "DataFrame") -> "DataFrame":
        """The rows of the keys that changed as they are now, in the table's columns, where they are not to be read."""
        path = self.warehouse.path(self.declaration.table)
        old = changed.of(located(self.session, path, self._version), self._key)
        merged = self.aggregation.merged(changes, old, (FILE, ROW))
        found = dict(merged.dtypes)
        # The sum of sums is of a wider type.
        columns = [f"`{name}`" if found[name] == kind else f"CAST(`{name}` AS {kind}) AS `{name}`"
                   for name, kind in answer.dtypes]  # fmt: skip
        rows = merged.selectExpr(*columns, FILE, ROW, f"{ROWS} <> 0 AS {WRITTEN}", _AGAIN)
        return rows.where(f"{WRITTEN} OR {FILE} IS NOT NULL")

    def _swap(self, merged: "DataFrame", changed: ChangedKeys, began_ms: int) -> Commit | None:
        again = keys_of_rows(merged.where(_AGAIN), self._key, few=changed.keys <= ROWS_HERE_MAX)
        try:
            rows = merged.drop(_AGAIN) if again.keys == 0 else self._with_read_again(merged, again)
            stamp = replace(
                self.plan.wanted,
                batch=self._version + 1,
                refresh=Refresh(
                    road="parts",
                    reason=None,
                    began_ms=began_ms,
                    keys=changed.keys,
                    changed=changed.rows,
                    costs=self.plan.costs,
                    again=again.keys,
                ),
            )
            path = self.warehouse.path(self.declaration.table)
            files = max(1, min(parallelism(self.session), changed.keys // KEYS_A_FILE))
            swap = swap_located if again.keys else swap_persisted

            def write() -> None:
                swap(self.session, path, rows, version=self._version, stamp=stamp, files=files)

            return commit_once(TableLog(self.session, path), stamp, above=self._version, write=write)
        finally:
            again.frame.unpersist()

    def _with_read_again(self, merged: "DataFrame", again: ChangedKeys) -> "DataFrame":
        reason = why_full(
            replace(self.work, read=self.work.inputs, keys=again.keys, replaced=again.keys, of_parts=False)
        )
        if reason is not None:
            raise CostlyError(f"{reason}; the rows of so many keys would have to be read again")
        ((table, at),) = self.plan.wanted.inputs.items()
        rows = read_input(self.session, self.warehouse.path(table), at.version)
        nowhere = (f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}", f"true AS {WRITTEN}")
        came = transformed(self.declaration, [self.inputs.of_keys(table, rows, again)]).selectExpr("*", *nowhere)
        gone = merged.where(_AGAIN).drop(WRITTEN, _AGAIN).selectExpr("*", f"false AS {WRITTEN}")
        return merged.where(f"NOT {_AGAIN}").drop(_AGAIN).unionByName(gone).unionByName(came)
