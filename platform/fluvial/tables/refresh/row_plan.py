"""
How a table without a key is to be brought to the newest versions of its inputs: by the changed rows alone, or by the
full query. The inputs' logs are read for it, and the transform is called, which reads nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fluvial.delta.file_stats import table_stats
from fluvial.delta.mart_stamp import MartStamp
from fluvial.delta.row_swap import CHANGE, CHANGED_AT, can_swap
from fluvial.spark.connect import is_client
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.plan.changed_keys import UnreadableChangesError, has_changes, read_changes, rows_changed, rows_went
from fluvial.tables.plan.key_locality import marked
from fluvial.tables.plan.refresh_cost import RowWork, why_full_of_rows
from fluvial.tables.plan.row_by_row import RowByRow, look_row_by_row
from fluvial.tables.refresh.mart_look import MartLook
from fluvial.tables.refresh.pipeline_inputs import read_input, transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTHING = "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """
    How a table is brought to the versions of `wanted`: by the rows that came to its inputs and went, or for a `reason`
    by the full query.

    `answer` is what the full query makes. `came` and `gone` are what the transform makes of the rows that came and of
    those that went; None where there is the full query, and `gone` where no row went. `before` is the table's version,
    `changed` the inputs whose rows changed, `work` what was weighed, None where nothing was.
    """

    wanted: MartStamp
    before: int | None
    reason: str | None
    answer: "DataFrame"
    came: "DataFrame | None" = None
    gone: "DataFrame | None" = None
    changed: tuple[str, ...] = ()
    work: RowWork | None = None

    @property
    def costs(self) -> tuple[int, int] | None:
        """
        What was weighed: the cost by the changed rows, and that of the full query.
        """
        return None if self.work is None else (self.work.by_rows, self.work.full)


@dataclass(frozen=True, kw_only=True)
class RowPlanner:
    """
    One look at a table and its inputs, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    def plan(self, *, rebuild: bool = False) -> RowPlan:
        """
        Decide how. Raises TableError for an input that is not there, DeclarationError for a transform that does not fit
        its inputs.
        """
        answer = self._answer({})
        whole = RowPlan(wanted=self._mart.wanted, before=self._mart.before, reason=None, answer=answer)
        if is_client(self.session):
            reason = "a rebuild was asked for" if rebuild else self._mart.obstacle()
            return replace(whole, reason=reason)
        reason = "a rebuild was asked for" if rebuild else self._mart.obstacle()
        changed: tuple[str, ...] = ()
        try:
            changed = self._changed() if reason is None else ()
        except UnreadableChangesError as error:
            reason = str(error)
        looked = self._look(answer, tuple(map(self.declaration.inputs.index, changed)))
        whole = replace(whole, wanted=replace(self._mart.wanted, plan=looked.plan), reason=reason or looked.refusal)
        try:
            return whole if whole.reason is not None else self._by_rows(whole, changed)
        except UnreadableChangesError as error:
            return replace(whole, reason=str(error))

    def flowing(self) -> Mapping[str, str | None]:
        """
        For each input, why rows that come to it or go cannot be applied alone; None where they can.
        """
        answer = self._answer({})
        return {table: self._look(answer, (number,)).refusal for number, table in enumerate(self.declaration.inputs)}

    @cached_property
    def _mart(self) -> MartLook:
        return MartLook(declaration=self.declaration, warehouse=self.warehouse, session=self.session)

    def _answer(self, changed: Mapping[str, "DataFrame"]) -> "DataFrame":
        """What the transform makes of the inputs, of some of which no more than `changed`."""
        frames = []
        for number, (table, at) in enumerate(self._mart.wanted.inputs.items()):
            frame = changed.get(table)
            if frame is None:
                frame = read_input(self.session, self.warehouse.path(table), at.version)
            frames.append(frame if is_client(self.session) else marked(frame, number))
        return transformed(self.declaration, frames)

    def _look(self, answer: "DataFrame", changed: tuple[int, ...]) -> RowByRow:
        return look_row_by_row(answer, changed, self.declaration.inputs)

    def _by_rows(self, whole: RowPlan, changed: tuple[str, ...]) -> RowPlan:
        if self._mart.since.plan is None or self._mart.since.plan != whole.wanted.plan:
            return replace(whole, reason="the plan of the transform is another one than when the table was written")
        work = self._work(changed)
        reason = why_full_of_rows(work)
        if reason is not None:
            return replace(whole, reason=reason, work=work)
        if not can_swap(self.session, self._mart.log.path, whole.answer, only_came=True):
            return replace(whole, reason="rows of the table's columns cannot be added: it has others", work=work)
        return self._with_changes(replace(whole, changed=changed, work=work), only_came=work.only_came)

    def _with_changes(self, plan: RowPlan, *, only_came: bool) -> RowPlan:
        """The plan with what the transform makes of the changed rows, unless that is another function of them."""
        changed = plan.changed
        numbers = tuple(map(self.declaration.inputs.index, changed))
        try:
            came = self._of_changes(changed, "insert")
            gone = None if only_came else self._of_changes(changed, "delete")
        except DeclarationError as error:
            # It fits the tables, and not their changes: it may name a hidden column of these.
            return replace(plan, reason=str(error))
        for frame in filter(None, (came, gone)):
            if changed and self._look(frame, numbers) != RowByRow(plan=plan.wanted.plan, refusal=None):
                return replace(plan, reason="the plan of the transform depends on its inputs' rows")
        return replace(plan, came=came, gone=gone)

    def _changed(self) -> tuple[str, ...]:
        """The inputs of which rows came or went. Raises UnreadableChangesError."""
        found = []
        for table, at in self._mart.wanted.inputs.items():
            since = self._mart.since.inputs[table]
            if has_changes(self._mart.input_logs[table], table, since, at.version):
                found.append(table)
        return tuple(found)

    def _work(self, changed: tuple[str, ...]) -> RowWork:
        inputs = rows = 0
        only_came = True
        for table in changed:
            log = self._mart.input_logs[table]
            since, until = self._mart.since.inputs[table].version, self._mart.wanted.inputs[table].version
            stats = table_stats(self.session, log.path, {})
            if stats is None:
                raise UnreadableChangesError("this Spark or this version of Delta does not tell which rows changed")
            inputs += stats.rows
            rows += rows_changed(log, since, until)
            only_came &= not rows_went(log, since, until)
        own = table_stats(self.session, self._mart.log.path, {})
        return RowWork(inputs=inputs, changed=rows, table=0 if own is None else own.rows, only_came=only_came)

    def _of_changes(self, changed: tuple[str, ...], kind: str) -> "DataFrame":
        """What the transform makes of the rows that came ("insert") or of those that went ("delete")."""
        frames = {}
        for table in changed:
            since, until = self._mart.since.inputs[table].version, self._mart.wanted.inputs[table].version
            changes = read_changes(self.session, self._mart.input_logs[table], table, since, until, few=False)
            frames[table] = changes.where(f"{CHANGE} = '{kind}'").drop(CHANGE, CHANGED_AT)
        # Where no row changed, only that files were written together, the answer is that of no rows.
        return self._answer(frames) if changed else self._answer({}).where(_NOTHING)
