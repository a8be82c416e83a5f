"""
Which rows of a history come too late for their windows: `DataFrame -> DataFrame`.

A row is judged by the records before it in its partition of the topic, which are the same whenever a table is refreshed
(:mod:`fluvial.tables.declare.windows`). Rows without an offset, as an adopted table may have, are never late.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from fluvial.tables.declare.windows import (
    OFFSET,
    PARTITION,
    TIME,
    WATERMARK,
    WINDOW_END,
    WINDOW_START,
    TimeWindows,
    micros,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Seen = Mapping[int, tuple[int, int | None]]
"""By partition the greatest offset, and the greatest time in microseconds; None where no row has a time."""
LATE_COLUMNS = ("input", PARTITION, OFFSET, "time", WINDOW_START, WINDOW_END, "watermark", "row")
"""
Of the table of late rows: the input, the row's place in its topic and its time, a window that it came too late for, how
far the watermark had come, and the row as JSON.
"""


LATE_PLACE = ("input", PARTITION, OFFSET, WINDOW_START)
"""What tells late rows apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """
    What rows that came to a partition tell of it: their least and greatest offset, their least and greatest time.
    """

    first: int
    last: int
    least: int | None
    greatest: int | None


def arrived(windows: TimeWindows, rows: "DataFrame") -> dict[int, Arrived]:
    """
    What rows tell of the partitions that they came to. One job.
    """
    found = windows.timed(rows).where(f"{PARTITION} IS NOT NULL AND {OFFSET} IS NOT NULL").groupBy(PARTITION)
    counted = found.agg(*(_expr(f"{each}({of})") for of in (OFFSET, TIME) for each in ("min", "max")))
    return {row[0]: Arrived(first=row[1], last=row[2], least=row[3], greatest=row[4]) for row in counted.collect()}


def seen_after(seen: Seen, rows: Mapping[int, Arrived]) -> dict[int, tuple[int, int | None]]:
    """
    What is seen of partitions after more rows.
    """
    found = dict(seen)
    for partition, each in rows.items():
        offset, time = found.get(partition, (each.last, None))
        times = [at for at in (time, each.greatest) if at is not None]
        found[partition] = max(offset, each.last), max(times, default=None)
    return found


def final_until(windows: TimeWindows, seen: Seen) -> int | None:
    """
    Until when windows take no more rows, in microseconds: no partition has one that is not late for them. None where a
    partition has no row with a time.
    """
    times = [time for _, time in seen.values()]
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return None
    return min(known) - micros(_delay(windows)) - micros(windows.grace)


def may_be_late(windows: TimeWindows, seen: Seen, rows: Mapping[int, Arrived], final: int | None) -> bool:
    """
    Whether one of the rows that came after what was `seen` could be late; no windows are looked at.
    """
    if final is not None and any(each.least is not None and each.least <= final for each in rows.values()):
        return True
    after = seen_after(seen, rows)
    slack = micros(windows.lateness) + micros(_delay(windows))
    return any(
        each.least is not None and (after[partition][1] or 0) - slack > each.least for partition, each in rows.items()
    )


def judged(windows: TimeWindows, rows: "DataFrame", seen: Seen) -> "DataFrame":
    """
    The windows of rows that came after what was `seen`, with the WATERMARK of their partition when they came; null
    where nothing came before.
    """
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.window import Window

    timed = windows.timed(rows)
    before = Window.partitionBy(PARTITION).orderBy(OFFSET).rowsBetween(Window.unboundedPreceding, -1)
    known = " ".join(f"WHEN {each} THEN {time}L" for each, (_, time) in seen.items() if time is not None)
    first = f"CASE {PARTITION} {known} END" if known else "CAST(NULL AS BIGINT)"
    passed = timed.withColumn(WATERMARK, greatest(TIME).over(before))
    return windows.assigned(
        passed.withColumn(WATERMARK, _expr(f"greatest({WATERMARK}, {first}) - {micros(_delay(windows))}L"))
    )


def is_late(windows: TimeWindows, final: int | None = None) -> str:
    """
    The condition that a judged row comes too late for its window, by the watermark or as windows are `final`.
    """
    late = f"coalesce({WINDOW_END} + {micros(windows.lateness)}L <= {WATERMARK}, false)"
    if final is not None:
        late = f"({late} OR {WINDOW_END} <= {_final_of_row(windows, final)}L)"
    return f"({OFFSET} IS NOT NULL AND {PARTITION} IS NOT NULL AND {late})"


def _final_of_row(windows: TimeWindows, final: int) -> int:
    """Where the window that a row has alone ends at the latest for it to change one that is final."""
    return final + micros(windows.grace - windows.lateness)


def late_rows(windows: TimeWindows, table: str, rows: "DataFrame", seen: Seen, final: int | None = None) -> "DataFrame":
    """
    Those of the rows of a table that came too late for a window, once for each, with LATE_COLUMNS.
    """
    # All rows are put into their order for it, so only by what is needed.
    places = rows.selectExpr(PARTITION, OFFSET, f"{windows.time} AS _fluvial_at")
    late = judged(replace(windows, time="_fluvial_at"), places, seen).where(is_late(windows, final))
    # The first rows of a partition are late for what is final by the watermark of the others.
    passed = WATERMARK if final is None else f"greatest({WATERMARK}, {final + micros(windows.grace)}L)"
    late = late.selectExpr(
        f"{PARTITION} AS _late_partition",
        f"{OFFSET} AS _late_offset",
        *(f"timestamp_micros({name}) AS _late_{name.strip('_')}" for name in (TIME, WINDOW_START, WINDOW_END)),
        f"timestamp_micros({passed}) AS _late_watermark",
    )
    found = rows.selectExpr(PARTITION, OFFSET, "to_json(struct(*), map('timeZone', 'UTC')) AS _late_row").join(
        late, _expr(f"{PARTITION} = _late_partition AND {OFFSET} = _late_offset")
    )
    return found.selectExpr(
        f"'{table}' AS input",
        PARTITION,
        OFFSET,
        f"_late_{TIME.strip('_')} AS time",
        f"_late_{WINDOW_START} AS {WINDOW_START}",
        f"_late_{WINDOW_END} AS {WINDOW_END}",
        "_late_watermark AS watermark",
        "_late_row AS row",
    )


def kept_late(
    windows: TimeWindows, table: str, rows: "DataFrame", *, late: "DataFrame", held: "DataFrame", final: int
) -> "DataFrame":
    """
    Those of the late rows that are `held` for windows that are `final`, though nothing makes them `late` any more.
    """
    of_final = held.where(f"input = '{table}' AND unix_micros({WINDOW_END}) <= {_final_of_row(windows, final)}L")
    now = rows.selectExpr(PARTITION, OFFSET, "to_json(struct(*), map('timeZone', 'UTC')) AS row")
    kept = of_final.drop("row").join(late, list(LATE_PLACE), "left_anti").join(now, [PARTITION, OFFSET])
    return kept.select(*LATE_COLUMNS)


def without_late(assigned: "DataFrame", late: "DataFrame", table: str) -> "DataFrame":
    """
    Rows in their windows (:meth:`~fluvial.tables.declare.windows.TimeWindows.assigned`), but for those that are late.
    """
    places = late.where(f"input = '{table}'").selectExpr(
        f"{PARTITION} AS _late_partition", f"{OFFSET} AS _late_offset", f"unix_micros({WINDOW_START}) AS _late_start"
    )
    same = f"{PARTITION} = _late_partition AND {OFFSET} = _late_offset AND {WINDOW_START} = _late_start"
    return assigned.join(places, _expr(same), "left_anti")


def on_time(windows: TimeWindows, rows: "DataFrame") -> "DataFrame":
    """
    All rows of a table in their windows, but for those that are late, found without the table of them.
    """
    return judged(windows, rows, {}).where(f"NOT {is_late(windows)}").drop(WATERMARK)


def _delay(windows: TimeWindows) -> timedelta:
    assert windows.watermark is not None, "rows of windows without a watermark are never late"
    return windows.watermark


def _expr(text: str) -> "Column":
    from pyspark.sql.functions import expr

    return expr(text)
