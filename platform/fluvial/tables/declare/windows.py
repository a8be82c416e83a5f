"""
Windows of event time: which windows a row of an input lies in, and since when a window takes no more rows.

Windows are laid over the rows of an input before the transform gets them: a row comes once for each window that it lies
in, with the columns WINDOW_START and WINDOW_END. A row whose time is null lies in none, as in Spark's `window`.

A watermark says how far the events of a partition of the topic have come: the greatest time among the records before,
less the delay. A row is late for a window that the watermark had passed, by `lateness` or more, when the row was
appended to its partition of the log. So which rows are late depends on the log alone, and not on when a table was
refreshed or what came in one batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, get_args

from fluvial.tables.declare.declarations import DeclarationError, checked_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""What a row gets for each window that it lies in: the window's first moment, and the first one after it."""
TIME, WATERMARK = "_fluvial_time", "_fluvial_watermark"
"""Microseconds of Unix time: of a row, and how far the watermark had come when the row was appended."""
PARTITION, OFFSET = "_partition", "_offset"
WINDOWS_MAX = 1000
"""A row lies in so many windows at most."""
_NEW = "_fluvial_new"
Emit = Literal["changes", "final"]
_NOTHING = timedelta(0)


class WindowKind(StrEnum):
    """
    How windows lie: one after the other, one beginning `every` so often, or as long as rows follow each other.
    """

    TUMBLING = "tumbling"
    HOPPING = "hopping"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindows:
    """
    Windows over `time`, a column or SQL expression of type timestamp.

    `size` is their length, of sessions the gap that ends one. They begin at multiples of `every` since 1970 in UTC.
    Without a `watermark`, the delay of it, no row is late. A row with a `reach` lies in the windows of the moments from
    `reach[1]` to `reach[0]` before its own time, in which what it is joined with happens. With `emit` "final" a window
    is there once the watermarks of all partitions have passed its end by `lateness`, of sessions by `size` more.
    """

    kind: WindowKind
    time: str
    size: timedelta
    every: timedelta
    watermark: timedelta | None = None
    lateness: timedelta = _NOTHING
    reach: tuple[timedelta, timedelta] | None = None
    emit: Emit = "changes"

    @property
    def is_session(self) -> bool:
        """
        Whether where a window begins and ends depends on the other rows of the key.
        """
        return self.kind is WindowKind.SESSION

    @property
    def grace(self) -> timedelta:
        """
        How far the watermark must have passed the end of a window that no row will change: one that comes later and is
        not late may still join a session of which it is no more than `size` away.
        """
        return self.lateness + (self.size if self.is_session else _NOTHING)

    @property
    def shape(self) -> tuple[WindowKind, timedelta, timedelta, Emit]:
        """
        What the windows of all inputs of a table must have the same.
        """
        return self.kind, self.size, self.every, self.emit

    def __str__(self) -> str:
        every = f" every {_words(self.every)}" if self.kind is WindowKind.HOPPING else ""
        late = ""
        if self.watermark is not None:
            late = f", watermark {_words(self.watermark)}, lateness {_words(self.lateness)}, {self.emit}"
        reach = "" if self.reach is None else f", reaching {_words(self.reach[0])} to {_words(self.reach[1])}"
        return f"{self.kind} {self.time} {_words(self.size)}{every}{reach}{late}"

    def check(self, frame: "DataFrame", what: str, table: str) -> None:
        """
        Raise DeclarationError where the rows of an input cannot be laid into these windows.
        """
        from pyspark.errors import AnalysisException

        try:
            ((_, kind),) = frame.selectExpr(self.time).dtypes
        except AnalysisException as error:
            line = str(error).strip().splitlines()[0]
            raise DeclarationError(
                f"{what}: the time {self.time!r} of its windows is not in {table}: {line}; name a column of type "
                f"timestamp ({_named(frame, 'timestamp')})"
            ) from error
        if kind != "timestamp":
            raise DeclarationError(
                f"{what}: the time {self.time!r} of its windows is {kind} in {table}, not a timestamp: cast it, as in "
                f'{self.kind}("CAST({self.time} AS TIMESTAMP)", …), or name one of its timestamps '
                f"({_named(frame, 'timestamp')})"
            )
        taken = {WINDOW_START, WINDOW_END} & {name.lower() for name in frame.columns}
        if taken:
            raise DeclarationError(
                f"{what}: {table} has a column {min(taken)} already, which its windows add: rename it in a pipeline "
                "between the two"
            )
        if self.watermark is not None and not {PARTITION, OFFSET} <= set(frame.columns):
            raise DeclarationError(
                f"{what}: {table} has no {PARTITION} and {OFFSET}, so nobody knows in which order its rows came: leave "
                "watermark out"
            )

    def timed(self, rows: "DataFrame") -> "DataFrame":
        """
        The same rows with the column TIME.
        """
        return rows.selectExpr("*", f"unix_micros({self.time}) AS {TIME}")

    def assigned(self, timed: "DataFrame") -> "DataFrame":
        """
        A row for each window that a row lies in, of rows that are :meth:`timed`, and rows without a time left out.

        Of a session this is the window that the row alone would have; :meth:`sessions` makes one of those that touch.
        """
        starts = TIME
        if not self.is_session:
            every, count = micros(self.every), self._windows_of_row
            last = f"({TIME} - pmod({TIME}, {every}L))"
            if self.reach is not None:
                moments = [f"({TIME} - {micros(each)}L)" for each in reversed(self.reach)]
                ends = ", ".join(f"{each} - pmod({each}, {every}L)" for each in moments)
                return self._with_ends(timed, f"explode(sequence({ends}, {every}L))")
            starts = last if count == 1 else f"explode(sequence({last} - {every * (count - 1)}L, {last}, {every}L))"
        rows = self._with_ends(timed, starts)
        return rows.where(f"{WINDOW_END} > {TIME}") if self.size % self.every else rows

    def sessions(self, assigned: "DataFrame", key: Sequence[str]) -> "DataFrame":
        """
        The same rows, each with the session of its `key` (SQL expressions) that it belongs to; all rows of a key.

        Of other windows the rows are as they are.
        """
        from pyspark.sql.functions import expr, max, min, sum, when
        from pyspark.sql.window import Window

        if not self.is_session:
            return assigned
        steps = [expr(step) for step in key]
        by_time = Window.partitionBy(*steps).orderBy(WINDOW_START)
        before = max(WINDOW_END).over(by_time.rowsBetween(Window.unboundedPreceding, -1))
        flagged = assigned.withColumn(_NEW, when(before >= expr(WINDOW_START), 0).otherwise(1))
        numbered = flagged.withColumn(_NEW, sum(_NEW).over(by_time.rangeBetween(Window.unboundedPreceding, 0)))
        session = Window.partitionBy(*steps, _NEW)
        whole = numbered.withColumn(WINDOW_END, max(WINDOW_END).over(session))
        return whole.withColumn(WINDOW_START, min(WINDOW_START).over(session)).drop(_NEW)

    def finished(self, assigned: "DataFrame") -> "DataFrame":
        """
        The rows as a transform gets them: with timestamps, and without what was added on the way.
        """
        kept = [f"`{name}`" for name in assigned.columns if name not in {TIME, WATERMARK, WINDOW_START, WINDOW_END}]
        return assigned.selectExpr(
            *kept, *(f"timestamp_micros({name}) AS {name}" for name in (WINDOW_START, WINDOW_END))
        )

    def laid_over(self, rows: "DataFrame", key: Sequence[str]) -> "DataFrame":
        """
        All rows of an input as a transform gets them, none of them late.
        """
        return self.finished(self.sessions(self.assigned(self.timed(rows)), key))

    @property
    def span(self) -> tuple[timedelta, timedelta]:
        """
        Between which moments the rows of a window lie, counted from its beginning.
        """
        least, most = self.reach or (_NOTHING, _NOTHING)
        return least, self.size + most

    def _with_ends(self, timed: "DataFrame", starts: str) -> "DataFrame":
        rows = timed.where(f"{TIME} IS NOT NULL").selectExpr("*", f"{starts} AS {WINDOW_START}")
        return rows.selectExpr("*", f"{WINDOW_START} + {micros(self.size)}L AS {WINDOW_END}")

    @property
    def _windows_of_row(self) -> int:
        return -(-self.size // self.every)


def tumbling(
    time: str, size: str, *, watermark: str | None = None, lateness: str | None = None, emit: Emit = "changes"
) -> TimeWindows:
    """
    Windows of `size`, such as "1 hour", one after the other, over `time`, a column or SQL expression.

    `watermark` is how far behind the greatest time a record may be and still be in order; a window takes rows until
    the watermark of their partition has passed its end by `lateness`. Later ones are kept in the table `late.<name>`.
    With `emit="final"` the table has a window once that holds of all partitions, and no later record changes it.
    """
    return _windows(WindowKind.TUMBLING, time, size, size, watermark=watermark, lateness=lateness, emit=emit)


def hopping(
    time: str,
    size: str,
    every: str,
    *,
    watermark: str | None = None,
    lateness: str | None = None,
    emit: Emit = "changes",
) -> TimeWindows:
    """
    Windows of `size` that begin `every` so often, so that a row lies in several; else as :func:`tumbling`.
    """
    return _windows(WindowKind.HOPPING, time, size, every, watermark=watermark, lateness=lateness, emit=emit)


def session(
    time: str, gap: str, *, watermark: str | None = None, lateness: str | None = None, emit: Emit = "changes"
) -> TimeWindows:
    """
    Windows of rows of the same key, each at most `gap` after the one before; a window ends `gap` after its last row.

    A row is late by the window that it would have alone. Else as :func:`tumbling`.
    """
    return _windows(WindowKind.SESSION, time, gap, gap, watermark=watermark, lateness=lateness, emit=emit)


def micros(length: timedelta) -> int:
    """
    A length in microseconds.
    """
    return length // timedelta(microseconds=1)


def _windows(
    kind: WindowKind, time: str, size: str, every: str, *, watermark: str | None, lateness: str | None, emit: Emit
) -> TimeWindows:
    what = f"{kind}({time!r}, {size!r})"
    if not isinstance(time, str) or not time.strip():
        raise DeclarationError(f"{what}: the time is {time!r}: name a column, or write a line of SQL")
    if emit not in get_args(Emit):
        raise DeclarationError(f'{what}: emit is {emit!r}: write emit="changes" or emit="final"')
    if watermark is None and (lateness is not None or emit == "final"):
        argument = "lateness" if lateness is not None else 'emit="final"'
        raise DeclarationError(
            f'{what}: {argument} counts from a watermark, and there is none: add it, as in watermark="10 minutes"'
        )
    made = TimeWindows(
        kind=kind,
        time=time.strip(),
        size=checked_duration(what, "gap" if kind is WindowKind.SESSION else "size", size),
        every=checked_duration(what, "every", every),
        watermark=None if watermark is None else checked_duration(what, "watermark", watermark, least=0),
        lateness=_NOTHING if lateness is None else checked_duration(what, "lateness", lateness, least=0),
        emit=emit,
    )
    if made.every > made.size:
        raise DeclarationError(
            f"{what}: a window of {size} every {every} leaves out the rows in between: let them begin at least every "
            f"{size}"
        )
    if made.size > made.every * WINDOWS_MAX:
        raise DeclarationError(
            f"{what}: a row would lie in {made.size // made.every:,} windows: have them begin less often, at most "
            f"{WINDOWS_MAX:,} within {size}"
        )
    return made


def check_windows(what: str, windows: Mapping[str, TimeWindows], inputs: Sequence[str]) -> None:
    """
    Raise DeclarationError for windows of a table that do not fit its inputs or each other.
    """
    shapes = set()
    for table, each in windows.items():
        if table not in inputs:
            raise DeclarationError(f"{what} has windows over {table}, which is none of its inputs: {', '.join(inputs)}")
        if not isinstance(each, TimeWindows):
            raise DeclarationError(
                f'{what}: the windows over {table} are {each!r}: write them as in tumbling("ordered_at", "1 hour")'
            )
        if each.watermark is not None and table.partition(".")[0] != "history":
            raise DeclarationError(
                f"{what}: the rows of {table} are in no order of arrival, as those of a history are, so none can be "
                "late: leave watermark out"
            )
        shapes.add(each.shape)
    if len(shapes) > 1:
        said = "; ".join(f"{table}: {each}" for table, each in windows.items())
        raise DeclarationError(f"{what}: the windows of its inputs must be alike in kind, size and emit ({said})")


def _named(frame: "DataFrame", kind: str) -> str:
    return ", ".join(name for name, found in frame.dtypes if found == kind) or "it has none"


def _words(length: timedelta) -> str:
    seconds = length // timedelta(seconds=1)
    for unit, count in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds and seconds % count == 0:
            return _counted(seconds // count, unit)
    return _counted(seconds, "second")


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
