"""
Rows of a pipeline's table made again from its inputs: those of the windows or keys that a stretch touches.

Of a table with tumbling or hopping windows a stretch of time is the windows that begin in it. Otherwise the rows of the
inputs in the stretch name the keys: by their place in the log, by the record's timestamp, in sessions by their own
time. The inputs are read at the versions that the table was made from, and the rows of these keys are replaced in one
commit, so the table is what it is by any other road.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX
from fluvial.delta.errors import OvertakenError
from fluvial.delta.failures import explain_failures
from fluvial.delta.mart_stamp import MartStamp
from fluvial.delta.stamp import new_run_id, offsets_predicate
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.offset_times import Window
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.declare.windows import WINDOW_START
from fluvial.tables.plan.changed_keys import ChangedKeys, distinct_keys, keys_of
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh.key_plan import ROWS_HERE_MAX, Plan
from fluvial.tables.refresh.key_refresh import KeyRefresh
from fluvial.tables.refresh.mart_look import MartLook, refreshed
from fluvial.tables.refresh.pipeline_inputs import read_input
from fluvial.tables.refresh.transforms import materialize_pipeline
from fluvial.tables.refresh.windowed_inputs import WindowedInputs
from fluvial.tables.replay.stretch import Stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACED = {"_topic", "_partition", "_offset", "_timestamp"}


def replay_mart(
    declaration: Pipeline,
    warehouse: Warehouse,
    spark: "SparkSession",
    stretch: Stretch,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """
    Bring a table with a key up to date, and make the rows again that a stretch touches.

    Raises DeclarationError for a table of which nothing tells which rows these are.
    """
    check_replayed(declaration)
    with explain_failures(declaration.table, warehouse.path(declaration.table)):
        came = materialize_pipeline(declaration, warehouse, spark, say)
        with session_of_its_own(spark) as session:
            look = MartLook(declaration=declaration, warehouse=warehouse, session=session)
            reason = look.obstacle()
            is_whole = reason is None and not came.skipped and _road(look) == "full"
        if reason is not None:
            say(f"{declaration.table}: the full query, because {reason}")
            return materialize_pipeline(declaration, warehouse, spark, say, rebuild=True)
        if is_whole:
            return came
        with session_of_its_own(spark) as session:
            replay = _MartReplay(declaration=declaration, warehouse=warehouse, session=session, say=say)
            return _together(came, replay.run(stretch))


def check_replayed(declaration: Pipeline) -> None:
    """
    Raise DeclarationError for a table of which no part can be made again.
    """
    table = declaration.table
    if declaration.output_mode is not None:
        raise DeclarationError(
            f"{table} is made by a streaming query, which remembers what came before: `fluvial table rebuild {table}` "
            "replays its inputs from their beginning"
        )
    if not declaration.key:
        raise DeclarationError(
            f'{table} has no key, so nothing tells which of its rows a range touches: declare key="…", or have it '
            f"written again by `fluvial run --rebuild {table}`"
        )


def _road(look: MartLook) -> str | None:
    last = look.since.refresh
    return None if last is None else last.road


def _together(came: RunResult, again: RunResult) -> RunResult:
    if came.skipped:
        return again
    return replace(
        again,
        skipped=False,
        version_before=came.version_before,
        rows=came.rows + again.rows,
        bytes=came.bytes + again.bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MartReplay:
    """The replay of a table that is made from its inputs and stamped so, in a session of the table's own."""

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"
    say: Callable[[str], None]

    def run(self, stretch: Stretch) -> RunResult:
        """Make the rows of the keys again that the stretch touches, in one commit."""
        refresh = KeyRefresh(declaration=self.declaration, warehouse=self.warehouse, session=self.session)
        for _ in range(ATTEMPTS_MAX):
            began_ms = time.time_ns() // 1_000_000
            look = MartLook(declaration=self.declaration, warehouse=self.warehouse, session=self.session)
            assert look.before is not None, "the table was brought up to date"
            # As it stands: a commit that brought it to newer inputs is no reason to read others than the stamp says.
            stamp = replace(look.since, refresh=None, removed=0, run=new_run_id())
            changed = self._touched(stretch, stamp, look.before)
            plan = Plan(wanted=stamp, before=look.before, changed=changed, reason=None)
            try:
                if not changed.keys:
                    return self._nothing(stamp, look.before)
                self.say(f"{self.declaration.table}: making {changed.keys:,} keys again")
                commit = refresh.carry_out(plan, began_ms)
            finally:
                plan.release()
            if commit is not None:
                return refreshed(self.declaration, stamp, look.before, commit)
            self.say(f"{self.declaration.table}: another run was first; planning again")
        raise OvertakenError(self.declaration.table, ATTEMPTS_MAX)

    def _touched(self, stretch: Stretch, stamp: MartStamp, version: int) -> ChangedKeys:
        inputs = WindowedInputs.of_stamp(self.declaration, self.warehouse, self.session, stamp)
        parts = [*self._of_inputs(stretch, stamp, inputs)]
        if not parts:
            raise DeclarationError(
                f"{self.declaration.table} has no windows and no input from the history that leads to its key, so "
                "nothing tells which of its rows a range touches: `fluvial run --rebuild "
                f"{self.declaration.table}` writes it again"
            )
        if stretch.window is not None and self.declaration.has_time_windows:
            # Also windows that no row of the inputs lies in any more.
            own = read_input(self.session, self.warehouse.path(self.declaration.table), version)
            rows = own.where(_within(f"`{WINDOW_START}`", stretch.window))
            parts.append(keys_of(rows, [f"`{column}`" for column in self.declaration.key]))
        return distinct_keys(parts, few_max=ROWS_HERE_MAX)

    def _of_inputs(self, stretch: Stretch, stamp: MartStamp, inputs: WindowedInputs) -> "Iterator[DataFrame]":
        """The keys that rows of the stretch lead to, for each input that tells."""
        for table, path in self.declaration.paths.items():
            if path is None or table in self.declaration.validity:
                continue
            rows = read_input(self.session, self.warehouse.path(table), stamp.inputs[table].version)
            found = self._keys_of(table, rows, stretch, inputs)
            if found is not None:
                yield found

    def _keys_of(self, table: str, rows: "DataFrame", stretch: Stretch, inputs: WindowedInputs) -> "DataFrame | None":
        windows, window = self.declaration.windows.get(table), stretch.window
        if window is not None and windows is not None and not windows.is_session:
            least, most = windows.span
            around = Window(
                start_ms=window.start_ms + round(least.total_seconds() * 1000),
                end_ms=window.end_ms + round(most.total_seconds() * 1000) + 1,
            )
            keys = inputs.keys(table, rows.where(_within(windows.time, around)))
            return keys.where(_within(f"`{keys.columns[-1]}`", window))
        if window is not None and windows is not None:
            return inputs.keys(table, rows.where(_within(windows.time, window)))
        if not set(rows.columns) >= _PLACED:
            return None
        return inputs.keys(table, rows.where(_in_log(stretch)))

    def _nothing(self, stamp: MartStamp, version: int) -> RunResult:
        return RunResult(
            table=self.declaration.table,
            kind=self.declaration.kind,
            skipped=True,
            version_before=version,
            version_after=version,
            inputs={table: at.version for table, at in stamp.inputs.items()},
        )


def _in_log(stretch: Stretch) -> str:
    """The condition for rows of a history."""
    if stretch.window is not None:
        return _within("_timestamp", stretch.window)
    topics = (f"(_topic = '{topic}' AND ({offsets_predicate(of)}))" for topic, of in sorted(stretch.offsets.items()))
    return " OR ".join(topics) or "false"


def _within(moment: str, window: Window) -> str:
    """The condition for a moment, a column or expression of SQL, that Delta can leave out files by."""
    least, most = (f"timestamp_micros({each * 1000}L)" for each in (window.start_ms, window.end_ms))
    return f"({moment}) >= {least} AND ({moment}) < {most}"
