"""
How a table with a key is to be brought to the newest versions of its inputs: by the keys that changed, or by the full
query. The inputs' logs and the rows that changed are read for it, no more.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fluvial.delta.file_stats import FileStats, comparable_type, table_stats
from fluvial.delta.log import is_here
from fluvial.delta.mart_stamp import MartStamp, Road
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.plan.changed_keys import (
    ChangedKeys,
    UnreadableChangesError,
    changed_keys,
    check_commits,
    has_changes,
    rows_changed,
    rows_went,
)
from fluvial.tables.plan.part_merge import can_merge
from fluvial.tables.plan.refresh_cost import Work, why_full
from fluvial.tables.refresh.late_table import LateTable, has_watermarks
from fluvial.tables.refresh.mart_look import MartLook
from fluvial.tables.refresh.pipeline_inputs import read_input
from fluvial.tables.refresh.windowed_inputs import WindowedInputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_HERE_MAX = 200_000
"""So many changed rows' keys are taken into this process."""
PRUNED_MIN = 0.2
"""Files are left out where they hold this part of an input's rows or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    """
    The `files` of an input that may hold rows of a key that changed, of so many `among`.
    """

    files: Sequence[FileStats]
    among: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    How a table is brought to the versions of `wanted`: by the keys that changed `since` the stamp that the table has,
    for an aggregate from the rows that changed since then, or for a `reason` by the full query.

    `before` is the table's version. `changed` must be let go of (:meth:`release`). `pruned` has the inputs,
    by table, of which files are left out. `work` is what was weighed, None where nothing was.
    """

    wanted: MartStamp
    before: int | None
    changed: ChangedKeys | None
    reason: str | None
    pruned: Mapping[str, Some] = field(default_factory=dict)
    work: Work | None = None
    since: MartStamp | None = None

    @property
    def road(self) -> Road:
        """
        How the rows are made.
        """
        return "keys" if self.changed is not None else "full" if self.since is None else "parts"

    @property
    def costs(self) -> tuple[int, int] | None:
        """
        What was weighed: the cost by keys, or of an aggregate by parts, and that of the full query.
        """
        return None if self.work is None else (self.work.cheaper, self.work.full)

    def release(self) -> None:
        """
        Let Spark forget the keys.
        """
        if self.changed is not None:
            self.changed.frame.unpersist()


@dataclass(frozen=True, kw_only=True)
class KeyPlanner:
    """
    One look at a table and its inputs, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    def plan(self, *, rebuild: bool = False, say: Callable[[str], None] | None = None) -> Plan:
        """
        Decide how. Where rows may be late, their table is brought up to date and what it gets is said; without `say`
        it is taken as it is, and nothing is written. Raises TableError for an input that is not there.
        """
        reason = "a rebuild was asked for" if rebuild else self._mart.obstacle()
        wanted, anew = self._with_watermarks(anew=rebuild, say=say)
        reason = reason or anew
        whole = Plan(wanted=wanted, before=self._mart.before, changed=None, reason=reason)
        if reason is not None:
            return whole
        try:
            work = self._work(wanted)
            reason = why_full(work)
            if reason is not None:
                return replace(whole, reason=reason, work=work)
            if work.of_parts:
                return replace(whole, work=work, since=self._mart.since)
            return self._by_keys(whole, work)
        except UnreadableChangesError as error:
            return replace(whole, reason=str(error))

    def _with_watermarks(self, *, anew: bool, say: Callable[[str], None] | None) -> tuple[MartStamp, str | None]:
        """The stamp that is wanted with how far the watermarks are, and why the full query must run for their sake."""
        wanted, made = self._mart.wanted, self._mart.made
        if not has_watermarks(self.declaration):
            return wanted, None
        late = LateTable(declaration=self.declaration, warehouse=self.warehouse, session=self.session)
        known = None if made is None else made.stamp.watermarks
        if say is None:
            return replace(wanted, watermarks=known), None
        marks = late.bring(wanted, made, anew=anew, say=say)
        return replace(wanted, watermarks=marks), late.judged_anew(known, marks)

    @cached_property
    def _mart(self) -> MartLook:
        return MartLook(declaration=self.declaration, warehouse=self.warehouse, session=self.session)

    @cached_property
    def _files(self) -> Mapping[str, tuple[int, Sequence[FileStats]]]:
        """The rows of each input, and its files where these are known at the version that is read."""
        found = {}
        for table, path in self.declaration.paths.items():
            at, where = self._mart.wanted.inputs[table].version, self.warehouse.path(table)
            is_pruned = path is not None and not self.declaration.from_parts
            kinds = dict(read_input(self.session, where, at).dtypes) if is_pruned else {}
            columns = {step: kinds[step] for step in path or () if step.isidentifier() and step in kinds}
            columns = {name: kind for name, kind in columns.items() if comparable_type(kind)}
            stats = table_stats(self.session, where, columns)
            if stats is None:
                raise UnreadableChangesError("this Spark or this version of Delta does not tell which rows changed")
            found[table] = stats.rows, stats.files if stats.version == at else ()
        return found

    def _work(self, wanted: MartStamp) -> Work:
        """What there is to do, before the changed keys are known."""
        since, changed, only_came = self._mart.since.inputs, 0, True
        for table, path in self.declaration.paths.items():
            log, until = self._mart.input_logs[table], self._mart.wanted.inputs[table].version
            if path is not None:
                check_commits(log, table, since[table], until)
                changed += rows_changed(log, since[table].version, until)
                only_came &= not rows_went(log, since[table].version, until)
            elif has_changes(log, table, since[table], until):
                raise UnreadableChangesError(f"{table}, which is read whole, has changed")
        own = table_stats(self.session, self._mart.log.path, {})
        here = self._finds_rows(changed <= ROWS_HERE_MAX and (only_came or not self.declaration.from_parts))
        whole = sum(rows for table, (rows, _) in self._files.items() if self.declaration.paths[table] is None)
        return Work(
            inputs=sum(rows for rows, _ in self._files.values()),
            read=whole,
            table=0 if own is None else own.rows,
            changed=changed,
            of_parts=self.declaration.from_parts,
            here=here and (not self.declaration.from_parts or self._merges_parts(wanted)),
        )

    def _merges_parts(self, wanted: MartStamp) -> bool:
        """Whether the parts of an aggregate are of kinds and types that the driver makes."""
        assert self.declaration.aggregation is not None, "parts are of an aggregate"
        (table,) = self.declaration.inputs
        rows = read_input(self.session, self.warehouse.path(table), wanted.inputs[table].version)
        inputs = WindowedInputs.of_stamp(self.declaration, self.warehouse, self.session, wanted)
        values = self.declaration.aggregation.values(inputs.keyed(table, rows))
        return can_merge(self.declaration.aggregation, dict(values.dtypes))

    def _finds_rows(self, few: bool) -> bool:
        """Whether the driver finds the table's rows of so few keys: the table is on this machine."""
        return few and is_here(self._mart.log.path)

    def _by_keys(self, whole: Plan, work: Work) -> Plan:
        inputs = WindowedInputs.of_stamp(self.declaration, self.warehouse, self.session, whole.wanted)
        changed = changed_keys(
            self.session,
            self.declaration,
            self._mart.input_logs,
            self._mart.since.inputs,
            {table: at.version for table, at in self._mart.wanted.inputs.items()},
            few=work.changed <= ROWS_HERE_MAX,
            keys=inputs.keys,
            also=inputs.newly_final(self._mart.since),
        )
        pruned, read = {}, work.read
        for table, path in self.declaration.paths.items():
            rows, files = self._files[table]
            if path is None:
                continue
            some = changed.in_files(files, path)
            rows_of_some = sum(file.rows for file in some)
            if files and rows_of_some <= (1 - PRUNED_MIN) * rows:
                pruned[table] = Some(files=some, among=len(files))
                read += rows_of_some
            else:
                read += rows
        work = replace(
            work,
            read=read,
            changed=changed.rows,
            keys=changed.keys,
            replaced=self._replaced(changed),
            here=self._finds_rows(changed.here is not None),
        )
        reason = why_full(work)
        if reason is not None:
            changed.frame.unpersist()
            return replace(whole, reason=reason, work=work)
        return replace(whole, changed=changed, pruned=pruned, work=work, since=self._mart.since)

    def _replaced(self, changed: ChangedKeys) -> int:
        """How many rows the table has of these keys: about as many for each as the last refresh by keys found."""
        assert self._mart.made is not None, "there is no obstacle"
        last = self._mart.made.stamp.refresh
        if last is not None and last.keys:
            rows = max(self._mart.made.stamp.removed, self._mart.made.commit.metric("numOutputRows"))
            return math.ceil(changed.keys * rows / last.keys)
        table = self.session.read.format("delta").load(self._mart.log.path)
        return int(changed.of(table, [f"`{column}`" for column in self.declaration.key]).count())
