"""
Bringing a table with a key to the newest versions of its inputs: by the keys that changed, or by the full query.

By keys, the rows that came to the inputs and went since the table's stamp name the keys; the transform runs over the
inputs' rows of these keys, and its answer takes the place of the table's rows of these keys in one commit, which
Delta refuses when another was first. A run that is killed leaves nothing, and the next one does the same. Where that
cannot be done, or would cost more, the full query runs, and the commit's stamp says why.
"""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, KEYED_TABLE, commit_once, replace_table
from fluvial.delta.errors import OvertakenError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh
from fluvial.delta.row_swap import CHANGE, CHANGED_AT, FILE, ROW, WRITTEN, can_swap, located, swap_located, swap_rows
from fluvial.delta.upkeep import compact_files, is_due
from fluvial.spark.connect import is_client, parallelism, session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.declare.folds import Kind
from fluvial.tables.plan.changed_keys import (
    KNOWN,
    ChangedKeys,
    UnreadableChangesError,
    explain_lost_changes,
    read_changes,
    rows_went,
)
from fluvial.tables.plan.key_locality import check_key_locality, check_repeatable, marked
from fluvial.tables.plan.own_parts import own_parts
from fluvial.tables.plan.part_merge import can_merge_values, merge_values
from fluvial.tables.plan.result import RunResult
from fluvial.tables.plan.row_by_row import look_row_by_row
from fluvial.tables.refresh.key_plan import KeyPlanner, Plan
from fluvial.tables.refresh.mart_look import refreshed
from fluvial.tables.refresh.obstacles import have_vectors
from fluvial.tables.refresh.part_refresh import KEYS_A_FILE, CostlyError, PartRefresh
from fluvial.tables.refresh.pipeline_inputs import read_input, transformed
from fluvial.tables.refresh.rows_here import RowsHere, TableHere, input_here, small_inputs, whole_input
from fluvial.tables.refresh.windowed_inputs import WindowedInputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The text of an error of `raise_error`; plans, which other errors may quote, have the first part alone.
_STRAY = re.compile(r"USER_RAISED_EXCEPTION\] _fluvial_stray<(.*?)>_fluvial_stray", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRefresh:
    """
    The refresh of one table with a key, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    @property
    def path(self) -> str:
        """
        Where the table lies.
        """
        return self.warehouse.path(self.declaration.table)

    @property
    def log(self) -> TableLog:
        """
        The table's log.
        """
        return TableLog(self.session, self.path)

    def plan(self, *, rebuild: bool = False, say: Callable[[str], None] | None = None) -> Plan:
        """
        Decide how (:class:`~fluvial.tables.refresh.key_plan.KeyPlanner`).
        """
        planner = KeyPlanner(declaration=self.declaration, warehouse=self.warehouse, session=self.session)
        return planner.plan(rebuild=rebuild, say=say)

    def answer(self, plan: Plan) -> "DataFrame":
        """
        What the transform makes of the inputs, or of their rows of the changed keys.

        Raises DeclarationError where it cannot be computed key by key.
        """
        frames = self._frames(plan, here=False)
        answer = transformed(self.declaration, frames)
        if not is_client(self.session):
            self._check(frames, answer)
        return answer

    def _frames(self, plan: Plan, *, here: bool) -> "list[DataFrame]":
        """What the transform is called with; with `here`, few rows may be read already."""
        frames = []
        inputs, wanted = self._inputs(plan), plan.wanted.inputs.items()
        here = here and not self._may_have_own_values(plan)
        small = small_inputs((self.warehouse.path(table), at.version) for table, at in wanted) if here else {}

        def read(where: str, version: int) -> "DataFrame":
            return (
                whole_input(self.session, where, *small[where]) if small else read_input(self.session, where, version)
            )

        for number, (table, at) in enumerate(wanted):
            path, where = self.declaration.paths[table], self.warehouse.path(table)
            if plan.changed is None or path is None:
                frame = inputs.keyed(table, read(where, at.version))
            else:
                near = self._near_here(plan, plan.changed, table, at.version) if here else None
                if near is None:
                    near = read(where, at.version)
                    if table in plan.pruned:
                        near = plan.changed.within(near, plan.pruned[table].files, path)
                frame = inputs.of_keys(table, near, plan.changed)
            frames.append(marked(inputs.whole(table, frame), number))
        return frames

    def _near_here(self, plan: Plan, changed: ChangedKeys, table: str, version: int) -> "DataFrame | None":
        """Few rows of an input among which those of the keys that changed are, as this process has read them."""
        if plan.work is None:
            return None
        where, path = self.warehouse.path(table), self.declaration.paths[table] or ()
        return input_here(self.session, where, version, steps=path, changed=changed, share=plan.work.share)

    def _check(self, frames: "list[DataFrame]", answer: "DataFrame") -> None:
        """Raise DeclarationError for an answer that cannot be computed key by key."""
        aggregation = self.declaration.aggregation
        if aggregation is not None:
            # What the user wrote is what it makes of each row.
            check_key_locality(self.declaration, frames, aggregation.values(frames[0]))
        elif self.declaration.validity:
            check_repeatable(self.declaration, frames, answer)
        else:
            check_key_locality(self.declaration, frames, answer)

    def _inputs(self, plan: Plan) -> WindowedInputs:
        return WindowedInputs.of_stamp(self.declaration, self.warehouse, self.session, plan.wanted)

    def carry_out(self, plan: Plan, began_ms: int) -> Commit | None:
        """
        Do it in one commit; None where another writer was first.
        """
        parts, carried = self._parts(plan), None
        try:
            carried = None if parts is None else parts.carry_out_here(began_ms)
        except UnreadableChangesError as error:
            parts, plan = None, replace(plan, since=None, reason=str(error))
        if carried is not None:
            return carried.commit
        answer = self._answer_here(plan)
        if plan.road != "full" and not can_swap(self.session, self.path, answer):
            # Of one that was made before it had a key, or whose inputs got columns.
            whole = Plan(wanted=plan.wanted, before=plan.before, changed=None, reason="rows of the table's columns "
                         "cannot be replaced: it has others, or no deletion vectors")  # fmt: skip
            return self._write_whole(self.answer(whole), whole, began_ms)
        if plan.changed is not None:
            return self._swap(answer, plan, plan.changed, began_ms)
        try:
            if parts is not None:
                return parts.carry_out(answer, began_ms)
        except (CostlyError, UnreadableChangesError) as error:
            plan = replace(plan, since=None, reason=str(error))
        return self._write_whole(answer, plan, began_ms)

    def _answer_here(self, plan: Plan) -> "DataFrame":
        """The same as :meth:`answer`; of few rows, which may be read already, where it was looked at before."""
        if plan.road == "parts" or plan.work is None:
            return self.answer(plan)
        # It was looked at when the same code made the table of the same columns.
        return transformed(self.declaration, self._frames(plan, here=True))

    def _parts(self, plan: Plan) -> PartRefresh | None:
        """The refresh from the rows that changed, where it is so planned."""
        if plan.road != "parts" or plan.since is None or plan.work is None or self.declaration.aggregation is None:
            return None
        return PartRefresh(
            declaration=self.declaration,
            aggregation=self.declaration.aggregation,
            warehouse=self.warehouse,
            session=self.session,
            plan=plan,
            since=plan.since,
            work=plan.work,
            inputs=self._inputs(plan),
        )

    def _write_whole(self, answer: "DataFrame", plan: Plan, began_ms: int) -> Commit | None:
        before, refresh = plan.before, Refresh(road="full", reason=plan.reason, began_ms=began_ms, costs=plan.costs)
        if before is not None:
            before = have_vectors(self.session, self.log, before)
        own = None if before is None else self._own(before)
        if own is not None and own.takes(answer):
            stamp, rows = replace(plan.wanted, batch=own.version + 1, refresh=refresh), own.replaced_by(answer)
            return commit_once(self.log, stamp, above=before, write=lambda: own.put(rows, stamp))
        stamp = replace(plan.wanted, batch=0 if before is None else before + 1, refresh=refresh)
        return commit_once(
            self.log, stamp, above=before, write=lambda: replace_table(answer, self.path, stamp, KEYED_TABLE)
        )

    def _own(self, version: int) -> TableHere:
        return TableHere(session=self.session, path=self.path, version=version, key=self.declaration.key)

    def own_values(self, answer: "DataFrame", plan: Plan) -> Mapping[str, Kind] | None:
        """
        How each column of the table is added up where its rows are made of the rows that came and the table's own; None
        where the transform or the changes are not such, or too many.
        """
        if not self._may_have_own_values(plan):
            return None
        values = own_parts(answer, self.declaration.key, self.declaration.inputs)
        can = values is not None and can_merge_values(values, self.declaration.key, dict(answer.dtypes))
        return values if can else None

    def _may_have_own_values(self, plan: Plan) -> bool:
        is_plain = len(self.declaration.inputs) == 1 and not self.declaration.windows
        return is_plain and self.declaration.aggregation is None and self._came_alone(plan)

    def _came_alone(self, plan: Plan) -> bool:
        """Whether few rows came to the first input, and none went."""
        if plan.since is None or plan.changed is None or plan.changed.here is None:
            return False
        return not rows_went(*self._first_input(plan, plan.since))

    def _first_input(self, plan: Plan, since: MartStamp) -> tuple[TableLog, int, int]:
        table = self.declaration.inputs[0]
        log = TableLog(self.session, self.warehouse.path(table))
        return log, since.inputs[table].version, plan.wanted.inputs[table].version

    def _from_own_rows(self, answer: "DataFrame", plan: Plan, own: TableHere) -> RowsHere | None:
        """The rows of the keys that changed, of the rows that came and the table's own; None where they are not."""
        values = self.own_values(answer, plan)
        if values is None or plan.since is None:
            return None
        log, since, until = self._first_input(plan, plan.since)
        try:
            changes = read_changes(self.session, log, self.declaration.inputs[0], since, until, few=True)
        except UnreadableChangesError:
            return None
        came = transformed(self.declaration, [marked(changes.drop(CHANGE, CHANGED_AT).coalesce(1), 0)])
        looked = [look_row_by_row(each, (0,), self.declaration.inputs).plan for each in (answer, came)]
        if looked[0] is None or looked[0] != looked[1]:
            # It may have looked at its input while it was called.
            return None
        try:
            with explain_lost_changes():
                rows = came.toArrow()
        except UnreadableChangesError:
            return None
        return own.merged(rows, [*values], partial(merge_values, values, self.declaration.key))

    def _stamp(self, plan: Plan, changed: ChangedKeys, began_ms: int) -> MartStamp:
        assert plan.before is not None, "rows are replaced in a table that is there"
        refresh = Refresh(
            road="keys", reason=None, began_ms=began_ms, keys=changed.keys, changed=changed.rows, costs=plan.costs
        )
        return replace(plan.wanted, batch=plan.before + 1, refresh=refresh)

    def _swap(self, answer: "DataFrame", plan: Plan, changed: ChangedKeys, began_ms: int) -> Commit | None:
        assert plan.before is not None, "rows are replaced in a table that is there"
        version, stamp = plan.before, self._stamp(plan, changed, began_ms)
        own = self._own(version)
        here = self._from_own_rows(answer, plan, own)
        if here is not None:
            return commit_once(self.log, stamp, above=version, write=lambda: own.put(here, stamp))
        steps = [f"`{column}`" for column in self.declaration.key]
        columns = [f"`{name}`" for name in read_input(self.session, self.path, version).columns]
        # Null for a row that is new; of a key that did not change it fails.
        came = changed.known(answer.select(*columns), steps, self._stray())
        files = max(1, min(parallelism(self.session), changed.keys // KEYS_A_FILE))
        places = own.places(changed)
        few = None if places is None or plan.work is None else own.columns_of_few(plan.work.share)

        def swap() -> None:
            if places is None:
                table = located(self.session, self.path, version)
                old = changed.of(table, steps).selectExpr(*columns, FILE, ROW, f"false AS {WRITTEN}")
                nowhere = (f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}")
                rows = came.selectExpr(*columns, *nowhere, f"{KNOWN} AS {WRITTEN}").unionAll(old)
                swap_located(self.session, self.path, rows, version=version, stamp=stamp, files=files)
                return
            written = came.where(KNOWN).select(*columns)
            replaced = replace(stamp, removed=sum(map(len, places.values())))
            if few is not None:
                rows = written.toArrow().select(few.names).cast(few)
                own.put(RowsHere(rows=rows, places=places), replaced)
                return
            swap_rows(self.session, self.path, written, places, version=version, stamp=replaced, files=files)

        def write() -> None:
            try:
                swap()
            except Exception as error:
                stray = _STRAY.search(str(error))
                if stray is None:
                    raise
                raise DeclarationError(
                    f'pipeline("{self.declaration.name}") returned a row of a key that it had no rows of ({stray[1]}): '
                    "have each row keep the key of the rows that it is made of, or leave key out"
                ) from error

        return commit_once(self.log, stamp, above=version, write=write)

    def _stray(self) -> "Column":
        """The text that a row of another key fails with."""
        from pyspark.sql.functions import coalesce, col, concat, lit

        shown: list[Column] = []
        for column in self.declaration.key:
            value = coalesce(col(f"`{column}`").cast("string"), lit("null"))
            shown.extend((lit(f"{', ' if shown else ''}{column} "), value))
        return concat(lit("_fluvial_stray<"), *shown, lit(">_fluvial_stray"))


def refresh_by_keys(
    declaration: Pipeline,
    warehouse: Warehouse,
    spark: "SparkSession",
    say: Callable[[str], None],
    *,
    rebuild: bool = False,
) -> RunResult:
    """
    Bring a table with a key to the newest versions of its inputs.
    """
    with session_of_its_own(spark) as session:
        refresh = KeyRefresh(declaration=declaration, warehouse=warehouse, session=session)
        for _ in range(ATTEMPTS_MAX):
            began_ms = time.time_ns() // 1_000_000
            plan = refresh.plan(rebuild=rebuild, say=say)
            with ExitStack() as opened:
                opened.callback(plan.release)
                if plan.road == "full":
                    say(f"{declaration.table}: the full query, because {plan.reason}")
                elif plan.changed is not None:
                    say(f"{declaration.table}: {plan.changed.keys:,} keys changed by {plan.changed.rows:,} rows")
                commit = refresh.carry_out(plan, began_ms)
            if commit is None:
                say(f"{declaration.table}: another run was first; planning again")
                continue
            if is_due(commit.version) and not is_client(session):
                compact_files(session, refresh.path, by=declaration.key)
            return refreshed(declaration, plan.wanted, plan.before, commit)
    raise OvertakenError(declaration.table, ATTEMPTS_MAX)
