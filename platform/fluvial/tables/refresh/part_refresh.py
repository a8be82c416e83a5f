"""
Bringing an aggregate up to date from the rows that came to its input and went, and its own rows of their keys.

The keys whose rows cannot be told from these (a minimum that went) are computed again from the input's rows of these
keys, in the same commit. Where reading them would cost more than the full query, that runs.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from fluvial.delta.commit import commit_once
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh
from fluvial.delta.row_swap import CHANGE, FILE, ROW, WRITTEN, located, swap_located, swap_persisted, takes_swaps
from fluvial.spark.connect import parallelism
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.aggregates import CHANGED, ROWS, WEIGHT, Aggregation
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.plan.changed_keys import (
    ChangedKeys,
    explain_lost_changes,
    keys_of,
    keys_of_rows,
    read_changes,
    rows_went,
)
from fluvial.tables.plan.part_merge import UnmergedError, can_merge, make_parts, merge_parts
from fluvial.tables.plan.refresh_cost import Work, why_full
from fluvial.tables.refresh.key_plan import ROWS_HERE_MAX, Plan
from fluvial.tables.refresh.pipeline_inputs import read_input, transformed
from fluvial.tables.refresh.rows_here import TableHere
from fluvial.tables.refresh.windowed_inputs import WindowedInputs

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


@dataclass(frozen=True, slots=True)
class Carried:
    """
    A refresh that was carried out by a commit, or None where another writer was first.
    """

    commit: Commit | None


@dataclass(frozen=True, kw_only=True)
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

    def carry_out_here(self, began_ms: int) -> "Carried | None":
        """
        Replace the rows of the keys that changed in one commit, merged in this process. None where that cannot be done
        here, and nothing is written; what is carried out is None where another writer was first.

        The batch query is not looked at: it was when the same code made the table from the same columns. Raises
        :class:`~fluvial.tables.plan.changed_keys.UnreadableChangesError`.
        """
        if not self._only_came or self.work.changed > ROWS_HERE_MAX or not takes_swaps(self.session, self._path):
            return None
        values = self.aggregation.values(self._changed_rows()).drop(WEIGHT)
        if not can_merge(self.aggregation, dict(values.dtypes)):
            return None
        with explain_lost_changes():
            came = values.toArrow()
        try:
            parts = make_parts(self.aggregation, came)
        except UnmergedError:
            return None
        table = TableHere(session=self.session, path=self._path, version=self._version, key=self.declaration.key)
        columns = (*self.aggregation.by, *self.aggregation.fields, *self.aggregation.merged_from)
        here = table.merged(parts, self.aggregation.merged_from, partial(merge_parts, self.aggregation), of=columns)
        if here is None:
            return None
        stamp = self._stamp(began_ms, keys=parts.num_rows, changed=came.num_rows, again=0)
        log = TableLog(self.session, self._path)
        return Carried(commit_once(log, stamp, above=self._version, write=lambda: table.put(here, stamp)))

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

    @property
    def _path(self) -> str:
        return self.warehouse.path(self.declaration.table)

    @cached_property
    def _input(self) -> tuple[str, TableLog, int, int]:
        """The input, its log, and the versions after and up to which its changes are read."""
        (table,) = self.declaration.inputs
        log = TableLog(self.session, self.warehouse.path(table))
        return table, log, self.since.inputs[table].version, self.plan.wanted.inputs[table].version

    @cached_property
    def _only_came(self) -> bool:
        _, log, since, until = self._input
        return not rows_went(log, since, until)

    def _changed_rows(self) -> "DataFrame":
        table, log, since, until = self._input
        few = self.work.changed <= ROWS_HERE_MAX
        return self.inputs.keyed(table, read_changes(self.session, log, table, since, until, few=few))

    def _changes(self) -> "DataFrame":
        return self.aggregation.changed_parts(self._changed_rows(), _WEIGHT, only_came=self._only_came)

    def _stamp(self, began_ms: int, *, keys: int, changed: int, again: int) -> MartStamp:
        refresh = Refresh(
            road="parts",
            reason=None,
            began_ms=began_ms,
            keys=keys,
            changed=changed,
            costs=self.plan.costs,
            again=again,
        )
        return replace(self.plan.wanted, batch=self._version + 1, refresh=refresh)

    def _merged(self, changes: "DataFrame", changed: ChangedKeys, answer: "DataFrame") -> "DataFrame":
        """The rows of the keys that changed as they are now, in the table's columns, where they are not to be read."""
        old = changed.of(located(self.session, self._path, self._version), self._key)
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
            stamp = self._stamp(began_ms, keys=changed.keys, changed=changed.rows, again=again.keys)
            files = max(1, min(parallelism(self.session), changed.keys // KEYS_A_FILE))
            swap = swap_located if again.keys else swap_persisted

            def write() -> None:
                swap(self.session, self._path, rows, version=self._version, stamp=stamp, files=files)

            return commit_once(TableLog(self.session, self._path), stamp, above=self._version, write=write)
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
