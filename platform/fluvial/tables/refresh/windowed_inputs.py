"""
The inputs of a pipeline in the windows that it declares, without the rows that came too late for these.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluvial.delta.mart_stamp import MartStamp
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.declare.windows import WINDOW_END, TimeWindows, micros
from fluvial.tables.plan.changed_keys import ChangedKeys, keys_of
from fluvial.tables.plan.late_rows import on_time, without_late
from fluvial.tables.plan.validity import FIRST, KEY, LAST, changed_spans
from fluvial.tables.refresh.late_table import LateTable
from fluvial.tables.refresh.pipeline_inputs import read_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedInputs:
    """
    How rows of a pipeline's inputs at the versions of a `stamp` become those that its transform gets; `late` are the
    late ones, if there are any.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"
    stamp: MartStamp
    late: "DataFrame | None" = None

    @classmethod
    def of_stamp(
        cls, declaration: Pipeline, warehouse: Warehouse, session: "SparkSession", stamp: MartStamp
    ) -> "WindowedInputs":
        """
        With the late rows that a stamp names.
        """
        late = None
        if stamp.watermarks is not None:
            table = LateTable(declaration=declaration, warehouse=warehouse, session=session)
            late = table.read(stamp.watermarks)
        return cls(declaration=declaration, warehouse=warehouse, session=session, stamp=stamp, late=late)

    def keyed(self, table: str, rows: "DataFrame") -> "DataFrame":
        """
        Rows of an input, from which the declared paths lead to the key. Raises DeclarationError where windows do not
        fit them.
        """
        windows = self.declaration.windows.get(table)
        if windows is None:
            return rows
        assigned = self._in_time(table, windows, rows)
        return assigned if windows.is_session else windows.finished(_final(windows, assigned, self.stamp))

    def _in_time(self, table: str, windows: TimeWindows, rows: "DataFrame") -> "DataFrame":
        windows.check(rows, f'pipeline("{self.declaration.name}")', table)
        assigned = windows.assigned(windows.timed(rows))
        if self.late is not None and windows.watermark is not None:
            assigned = without_late(assigned, self.late, table)
        return assigned

    def keys(self, table: str, changes: "DataFrame") -> "DataFrame":
        """
        The keys of rows that came to an input and went (:func:`~fluvial.tables.plan.changed_keys.keys_of`).
        """
        if table in self.declaration.validity:
            return self._keys_of_versions(table, changes)
        return keys_of(self.keyed(table, changes), self.declaration.paths[table] or ())

    def _keys_of_versions(self, table: str, changes: "DataFrame") -> "DataFrame":
        """The keys of the events while which something else holds than before."""
        from pyspark.sql.functions import expr

        ((events, windows),) = self.declaration.windows.items()
        own, path = self.declaration.paths[table] or (), self.declaration.paths[events] or ()
        spans = changed_spans(changes, own, self.declaration.validity[table])
        (since,) = spans.selectExpr(f"min({FIRST})").collect()[0]
        rows = read_input(self.session, self.warehouse.path(events), self.stamp.inputs[events].version)
        rows = rows.where("false") if since is None else rows.where(f"({windows.time}) >= timestamp_micros({since}L)")
        at = f"unix_micros({windows.time})"
        same = [f"({step}) = {KEY}{index}" for index, step in enumerate(path[: len(own)])]
        held = expr(" AND ".join((*same, f"{at} >= {FIRST}", f"{at} < {LAST}")))
        return keys_of(self.keyed(events, rows).join(spans, held, "left_semi"), path).distinct()

    def of_keys(self, table: str, rows: "DataFrame", changed: ChangedKeys) -> "DataFrame":
        """
        The rows of the keys that changed (:meth:`keyed`), of an input that leads to the key.
        """
        windows = self.declaration.windows.get(table)
        if windows is not None and not windows.is_session and windows.time.isidentifier():
            rows = changed.in_time(rows, windows.time, windows.span)
        return changed.of(self.keyed(table, rows), self.declaration.paths[table] or ())

    def whole(self, table: str, keyed: "DataFrame") -> "DataFrame":
        """
        All rows of some keys (:meth:`keyed`) as the transform gets them.
        """
        windows = self.declaration.windows.get(table)
        if windows is None or not windows.is_session:
            return keyed
        sessions = windows.sessions(keyed, self.declaration.paths[table] or ())
        return windows.finished(_final(windows, sessions, self.stamp))

    def newly_final(self, since: MartStamp) -> "list[DataFrame]":
        """
        The keys of windows that are final now and were not when a table was made, as those of rows that changed.
        """
        before, now = (None if each.watermarks is None else each.watermarks.final for each in (since, self.stamp))
        if now is None or now == before:
            return []
        found = []
        for table, windows in self.declaration.windows.items():
            rows = read_input(self.session, self.warehouse.path(table), self.stamp.inputs[table].version)
            if before is not None:
                rows = rows.where(f"({windows.time}) >= timestamp_micros({before - micros(windows.size)}L)")
            rows = self._in_time(table, windows, rows.where(f"({windows.time}) <= timestamp_micros({now}L)"))
            rows = rows.where(f"{WINDOW_END} <= {now}L" + ("" if before is None else f" AND {WINDOW_END} > {before}L"))
            found.append(keys_of(windows.finished(rows), self.declaration.paths[table] or ()).distinct())
        return found


def _final(windows: TimeWindows, rows: "DataFrame", stamp: MartStamp) -> "DataFrame":
    """The rows of windows that are there at a stamp."""
    if windows.emit != "final":
        return rows
    final = None if stamp.watermarks is None else stamp.watermarks.final
    return rows.where("false" if final is None else f"{WINDOW_END} <= {final}L")


def all_on_time(
    declaration: Pipeline, table: str, rows: "DataFrame", stamp: MartStamp, late: "DataFrame | None"
) -> "DataFrame":
    """
    All rows of an input as the transform gets them at a stamp, where those that are late are found from the rows
    themselves. `late` are the recorded ones, which count where windows are final.
    """
    windows = declaration.windows.get(table)
    if windows is None or windows.watermark is None:
        answer: DataFrame = declaration.in_windows(table, rows)
        return answer
    windows.check(rows, f'pipeline("{declaration.name}")', table)
    in_time = on_time(windows, rows)
    if windows.emit == "final" and late is not None:
        in_time = without_late(in_time, late, table)
    sessions = windows.sessions(in_time, declaration.paths[table] or ())
    return windows.finished(_final(windows, sessions, stamp))
