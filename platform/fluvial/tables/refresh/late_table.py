"""
The table `late.<name>` of rows that came too late for the windows of a pipeline.

It is brought to the versions of the inputs that the pipeline's table is brought to next, before that one is. As long as
rows only came to the inputs, they alone are judged, from how far the watermarks were; where rows went or the log does
not tell, all rows are judged again. Both come to the same rows, so a run that is killed in between does no harm.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, TABLE, append, commit_once, replace_table
from fluvial.delta.errors import OvertakenError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import InputVersion, Made, MartStamp, Watermarks, newest_made
from fluvial.delta.row_swap import CHANGE, CHANGED_AT
from fluvial.spark.session import know_table
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.declare.windows import TimeWindows
from fluvial.tables.plan.changed_keys import (
    UnreadableChangesError,
    check_commits,
    explain_lost_changes,
    read_changes,
)
from fluvial.tables.plan.late_rows import (
    LATE_COLUMNS,
    Seen,
    arrived,
    final_until,
    kept_late,
    late_rows,
    may_be_late,
    seen_after,
)
from fluvial.tables.refresh.pipeline_inputs import read_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """
    What was found: how far the watermarks are, and the late rows, None where there are none. `whole` where all rows
    were judged, else those that came.
    """

    seen: Mapping[str, Seen]
    late: "DataFrame | None"
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LateTable:
    """
    The late rows of one pipeline, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    @property
    def table(self) -> str:
        """
        The table's name in SQL.
        """
        return late_table_of(self.declaration)

    @property
    def log(self) -> TableLog:
        """
        The table's log.
        """
        return TableLog(self.session, self.warehouse.path(self.table))

    def bring(self, wanted: MartStamp, made: Made | None, *, anew: bool, say: Callable[[str], None]) -> Watermarks:
        """
        Have the table hold what is late at the versions of `wanted`, going on from what the pipeline's table was `made`
        from or from its own stamp, or `anew`.
        """
        for _ in range(ATTEMPTS_MAX):
            log = self.log
            log.check()
            version = log.newest_version()
            own = None if version is None else newest_made(log, until=version)
            since = None if anew else self._since(own, made, wanted)
            final = None if anew or made is None or made.stamp.key != wanted.key else _final_of(made.stamp)
            found = self._judged(since, wanted, final)
            marks = self._written(found, wanted, version, own, since)
            if marks is None:
                continue
            marks = replace(marks, final=self._final(marks, final))
            know_table(self.session, self.table, log.path)
            more = marks.rows - (0 if since is None or since.watermarks is None else since.watermarks.rows)
            if more > 0:
                say(f"{self.declaration.table}: {more:,} more rows came too late for a window: {self.table} has them")
            return marks
        raise OvertakenError(self.table, ATTEMPTS_MAX)

    def whole(self, wanted: MartStamp) -> "DataFrame | None":
        """
        What is late at the versions of `wanted` by the watermarks alone, judged from the beginning; None where no input
        has one. Writes nothing.
        """
        return self._whole(wanted, None).late

    def read(self, watermarks: Watermarks) -> "DataFrame | None":
        """
        The late rows that go with a stamp; None where there are none.
        """
        if watermarks.rows == 0 or watermarks.late is None:
            return None
        return read_input(self.session, self.log.path, watermarks.late.version)

    def judged_anew(self, since: Watermarks | None, now: Watermarks) -> str | None:
        """
        Why other rows may be late than those that came between two stamps of the pipeline's table; None where not.
        """
        if since is None or since.late is None or now.late is None:
            return "it was written without watermarks"
        log = self.log
        commits = {commit.version: commit for commit in log.newest_first(above=since.late.version - 1)}
        first = commits.get(since.late.version)
        between = [version for version in commits if since.late.version < version <= now.late.version]
        if first is None or first.txn_id != since.late.commit or len(between) < now.late.version - since.late.version:
            return f"{self.table} was made again"
        if any(log.data_changes(version) - {"add"} for version in between):
            return "rows of its inputs went, and with them other rows are late"
        return None

    @property
    def _inputs(self) -> Iterator[tuple[str, TimeWindows]]:
        for table, windows in self.declaration.windows.items():
            if windows.watermark is not None:
                yield table, windows

    def _since(self, own: Made | None, made: Made | None, wanted: MartStamp) -> MartStamp | None:
        """The stamp to go on from: the pipeline's own where it is of the newest late rows, as it may be the later."""
        if own is None or own.stamp.key != wanted.key or own.stamp.watermarks is None:
            return None
        log = self.log
        if any(log.data_changes(commit.version) for commit in log.newest_first(above=own.commit.version)):
            return None
        marks = None if made is None or made.stamp.key != wanted.key else made.stamp.watermarks
        at = InputVersion(version=own.commit.version, commit=own.commit.txn_id)
        return made.stamp if made is not None and marks is not None and marks.late == at else own.stamp

    def _final(self, marks: Watermarks, before: int | None) -> int | None:
        """Until when windows are final, never sooner than before."""
        if any(windows.emit != "final" for _, windows in self._inputs):
            return None
        found = [final_until(windows, marks.seen[table]) for table, windows in self._inputs]
        known = [each for each in found if each is not None]
        now = min(known) if len(known) == len(found) else None
        return max((each for each in (now, before) if each is not None), default=None)

    def _judged(self, since: MartStamp | None, wanted: MartStamp, final: int | None) -> _Judged:
        if since is not None:
            try:
                with explain_lost_changes():
                    found = self._appended(since, wanted, final)
            except UnreadableChangesError:
                found = None
            if found is not None:
                return found
        return self._whole(wanted, final)

    def _appended(self, since: MartStamp, wanted: MartStamp, final: int | None) -> _Judged | None:
        """Of rows that came alone; None where others changed, or some came below the offsets that were seen."""
        assert since.watermarks is not None, "it is the stamp of a table with watermarks"
        seen, late = {}, []
        for table, windows in self._inputs:
            log, at, until = self._log(table), since.inputs[table], wanted.inputs[table].version
            before = since.watermarks.seen[table]
            check_commits(log, table, at, until)
            changes = {kind for version in range(at.version + 1, until + 1) for kind in log.data_changes(version)}
            if changes - {"add"}:
                return None
            seen[table] = dict(before)
            if not changes:
                continue
            rows = read_changes(self.session, log, table, at.version, until, few=False).drop(CHANGE, CHANGED_AT)
            windows.check(rows, f'pipeline("{self.declaration.name}")', table)
            came = arrived(windows, rows)
            if any(each.first <= before[number][0] for number, each in came.items() if number in before):
                return None
            seen[table] = seen_after(before, came)
            if may_be_late(windows, before, came, final):
                late.append(late_rows(windows, table, rows, before, final))
        return _Judged(seen=seen, late=_together(late), whole=False)

    def _whole(self, wanted: MartStamp, final: int | None) -> _Judged:
        seen, late = {}, []
        version = self.log.newest_version()
        for table, windows in self._inputs:
            rows = read_input(self.session, self.warehouse.path(table), wanted.inputs[table].version)
            windows.check(rows, f'pipeline("{self.declaration.name}")', table)
            came = arrived(windows, rows)
            seen[table] = seen_after({}, came)
            found = late_rows(windows, table, rows, {})
            if final is not None and version is not None:
                held = read_input(self.session, self.log.path, version)
                found = found.unionByName(kept_late(windows, table, rows, late=found, held=held, final=final))
            late.append(found)
        return _Judged(seen=seen, late=_together(late), whole=True)

    def _written(
        self, found: _Judged, wanted: MartStamp, version: int | None, own: Made | None, since: MartStamp | None
    ) -> Watermarks | None:
        """Have the table hold what was found, if it does not; None where another writer was first."""
        there = None if own is None else InputVersion(version=own.commit.version, commit=own.commit.txn_id)
        before = 0 if since is None or since.watermarks is None or found.whole else since.watermarks.rows
        if found.late is None:
            return Watermarks(seen=found.seen, rows=before, late=there)
        late = found.late.persist()
        try:
            more = late.count()
            path = self.log.path
            if found.whole and own is not None and version is not None:
                held = read_input(self.session, path, version).select(*LATE_COLUMNS)
                if held.exceptAll(late).isEmpty() and late.exceptAll(held).isEmpty():
                    return Watermarks(seen=found.seen, rows=more, late=there)
            elif not found.whole and more == 0:
                return Watermarks(seen=found.seen, rows=before, late=there)
            marks = Watermarks(seen=found.seen, rows=before + more)
            stamp = MartStamp(
                pipeline=self.table,
                code=wanted.code,
                inputs={table: wanted.inputs[table] for table, _ in self._inputs},
                key=wanted.key,
                batch=0 if version is None else version + 1,
                watermarks=marks,
            )

            def write() -> None:
                (replace_table if found.whole else append)(late.coalesce(1), path, stamp, TABLE)

            commit = commit_once(self.log, stamp, above=version, write=write)
        finally:
            late.unpersist()
        if commit is None:
            return None
        at = InputVersion(version=commit.version, commit=commit.txn_id)
        return Watermarks(seen=marks.seen, rows=marks.rows, late=at)

    def _log(self, table: str) -> TableLog:
        return TableLog(self.session, self.warehouse.path(table))


def late_table_of(declaration: Pipeline) -> str:
    """
    The name of the table of a pipeline's late rows.
    """
    return f"late.{declaration.name}"


def has_watermarks(declaration: Pipeline) -> bool:
    """
    Whether rows of a pipeline's inputs may be late.
    """
    return any(each.watermark is not None for each in declaration.windows.values())


def _final_of(stamp: MartStamp) -> int | None:
    return None if stamp.watermarks is None else stamp.watermarks.final


def _together(frames: "list[DataFrame]") -> "DataFrame | None":
    return reduce(lambda one, other: one.unionByName(other), frames) if frames else None
