"""
Bringing a table with a key to the newest versions of its inputs: by the keys that changed, or by the full query.

By keys, the rows that came to the inputs and went since the table's stamp name the keys; the transform runs over the
inputs' rows of these keys, and its answer takes the place of the table's rows of these keys in one commit, which
Delta refuses when another was first. A run that is killed leaves nothing, and the next one does the same. Where that
cannot be done, or would cost more, the full query runs, and the commit's stamp says why.
"""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, KEYED_TABLE, commit_once, replace_table
from fluvial.delta.errors import OvertakenError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import Refresh
from fluvial.delta.row_swap import FILE, ROW, WRITTEN, can_swap, located, swap_located
from fluvial.delta.upkeep import compact_files, is_due, write_checkpoint
from fluvial.spark.connect import is_client, parallelism, session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.drive.key_plan import KeyPlanner, Plan
from fluvial.tables.drive.mart_look import refreshed
from fluvial.tables.drive.obstacles import have_vectors
from fluvial.tables.drive.part_refresh import KEYS_A_FILE, CostlyError, PartRefresh
from fluvial.tables.drive.pipeline_inputs import read_input, transformed
from fluvial.tables.drive.windowed_inputs import WindowedInputs
from fluvial.tables.plan.changed_keys import KNOWN, ChangedKeys, UnreadableChangesError
from fluvial.tables.plan.key_locality import check_key_locality, check_repeatable, marked
from fluvial.tables.plan.result import RunResult

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
        Decide how (:class:`~fluvial.tables.drive.key_plan.KeyPlanner`).
        """
        planner = KeyPlanner(declaration=self.declaration, warehouse=self.warehouse, session=self.session)
        return planner.plan(rebuild=rebuild, say=say)

    def answer(self, plan: Plan) -> "DataFrame":
        """
        What the transform makes of the inputs, or of their rows of the changed keys.

        Raises DeclarationError where it cannot be computed key by key.
        """
        frames = []
        inputs = self._inputs(plan)
        for number, (table, at) in enumerate(plan.wanted.inputs.items()):
            frame = read_input(self.session, self.warehouse.path(table), at.version)
            path = self.declaration.paths[table]
            if plan.changed is not None and path is not None:
                if table in plan.pruned:
                    frame = plan.changed.within(frame, plan.pruned[table].files, path)
                frame = inputs.of_keys(table, frame, plan.changed)
            else:
                frame = inputs.keyed(table, frame)
            frames.append(marked(inputs.whole(table, frame), number))
        answer = transformed(self.declaration, frames)
        if not is_client(self.session):
            self._check(frames, answer)
        return answer

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
        answer = self.answer(plan)
        if plan.road != "full" and not can_swap(self.session, self.path, answer):
            # Of one that was made before it had a key, or whose inputs got columns.
            whole = Plan(wanted=plan.wanted, before=plan.before, changed=None, reason="rows of the table's columns "
                         "cannot be replaced: it has others, or no deletion vectors")  # fmt: skip
            return self._write_whole(self.answer(whole), whole, began_ms)
        if plan.changed is not None:
            return self._swap(answer, plan, plan.changed, began_ms)
        try:
            return self._from_parts(answer, plan, began_ms)
        except (CostlyError, UnreadableChangesError) as error:
            plan = replace(plan, since=None, reason=str(error))
        return self._write_whole(answer, plan, began_ms)

    def _from_parts(self, answer: "DataFrame", plan: Plan, began_ms: int) -> Commit | None:
        """Do it from the rows that changed, where it is so planned."""
        if plan.since is None or plan.work is None or self.declaration.aggregation is None:
            return self._write_whole(answer, plan, began_ms)
        parts = PartRefresh(
            declaration=self.declaration,
            aggregation=self.declaration.aggregation,
            warehouse=self.warehouse,
            session=self.session,
            plan=plan,
            since=plan.since,
            work=plan.work,
            inputs=self._inputs(plan),
        )
        return parts.carry_out(answer, began_ms)

    def _write_whole(self, answer: "DataFrame", plan: Plan, began_ms: int) -> Commit | None:
        before = plan.before
        if before is not None:
            before = have_vectors(self.session, self.log, before)
        stamp = replace(
            plan.wanted,
            batch=0 if before is None else before + 1,
            refresh=Refresh(road="full", reason=plan.reason, began_ms=began_ms, costs=plan.costs),
        )
        return commit_once(
            self.log, stamp, above=before, write=lambda: replace_table(answer, self.path, stamp, KEYED_TABLE)
        )

    def _swap(self, answer: "DataFrame", plan: Plan, changed: ChangedKeys, began_ms: int) -> Commit | None:
        assert plan.before is not None, "rows are replaced in a table that is there"
        version, key = plan.before, self.declaration.key
        stamp = replace(
            plan.wanted,
            batch=version + 1,
            refresh=Refresh(
                road="keys", reason=None, began_ms=began_ms, keys=changed.keys, changed=changed.rows, costs=plan.costs
            ),
        )
        steps = [f"`{column}`" for column in key]
        old = changed.of(located(self.session, self.path, version), steps)
        columns = [f"`{name}`" for name in old.columns if name not in {FILE, ROW}]
        # Null for a row that is new; of a key that did not change it fails.
        came = changed.known(answer.select(*columns), steps, self._stray()).selectExpr(
            *columns, f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}", f"{KNOWN} AS {WRITTEN}"
        )
        rows = came.unionAll(old.selectExpr(*columns, FILE, ROW, f"false AS {WRITTEN}"))
        files = max(1, min(parallelism(self.session), changed.keys // KEYS_A_FILE))

        def write() -> None:
            try:
                swap_located(self.session, self.path, rows, version=version, stamp=stamp, files=files)
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
                write_checkpoint(session, refresh.path)
                compact_files(session, refresh.path)
            return refreshed(declaration, plan.wanted, plan.before, commit)
    raise OvertakenError(declaration.table, ATTEMPTS_MAX)
