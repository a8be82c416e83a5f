"""Time windows of Dagster's partitions: as ranges of offsets, and as the windows of a pipeline that begin in them."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from datetime import UTC, datetime

import dagster as dg

from fluvial.config import Settings
from fluvial.orchestration.checks.lag import Offsets
from fluvial.spark.offset_times import TopicCuts, Window, cut_topic, newest_timestamp


def window_of(context: dg.AssetExecutionContext) -> Window | None:
    """Return the stretch of time that a run is for: one window, or several that follow each other; None for all."""
    if not context.has_partition_key and not context.run.tags.get("dagster/asset_partition_range_start"):
        return None
    window = context.partition_time_window
    return Window(start_ms=_ms(window.start), end_ms=_ms(window.end))


def window_keys(context: dg.AssetExecutionContext) -> list[str]:
    """Return the partitions that a run is for; none for a run of all."""
    return [] if window_of(context) is None else list(context.partition_keys)


def completed_windows(
    settings: Settings,
    topic: str,
    partitions: dg.TimeWindowPartitionsDefinition,
    position: Offsets,
    known: Collection[str],
) -> list[str]:
    """
    Return the partitions that have ended and whose records are all in a table at `position`, in order.

    Those in `known` are left out, and so are those before the first record and after that of the newest one. Cuts of
    later moments are later in the log, so that both ends are found by bisection: some 2 log2(n) requests. Raises
    TopicError.
    """
    newest = newest_timestamp(settings.cluster, topic)
    if newest is None:
        return []
    keys = [key for key in partitions.get_partition_keys() if key not in known]
    keys = keys[: bisect_right(keys, newest, key=lambda key: _ms(partitions.time_window_for_partition_key(key).start))]

    def cuts(key: str) -> TopicCuts:
        return cut_topic(settings.cluster, topic, [_ms(partitions.time_window_for_partition_key(key).end)])

    def is_lacking(key: str) -> bool:
        return any(offset > position.get(partition, 0) for partition, offset in cuts(key).at[0].items())

    def has_begun(key: str) -> bool:
        found = cuts(key)
        return any(offset > found.bounds.starts.get(partition, 0) for partition, offset in found.at[0].items())

    keys = keys[: bisect_left(keys, True, key=is_lacking)]
    return keys[bisect_left(keys, True, key=has_begun) :]


def windows_begun(path: str, partitions: dg.TimeWindowPartitionsDefinition, known: Collection[str]) -> list[str]:
    """
    Return the partitions that have ended, from the earliest window of a table on this machine to its newest, in order.

    Those in `known` are left out. What the table's log says of its files tells, and nothing where it does not. Raises
    TableError.
    """
    moments = _bounds_of_windows(path)
    if not moments:
        return []
    first, last = (
        partitions.get_partition_key_for_timestamp(each.timestamp()) for each in (min(moments), max(moments))
    )
    starts = [_ms(partitions.time_window_for_partition_key(key).start) for key in (first, last)]
    return [
        key
        for key in partitions.get_partition_keys()
        if key not in known and starts[0] <= _ms(partitions.time_window_for_partition_key(key).start) <= starts[1]
    ]


def _bounds_of_windows(path: str) -> list[datetime]:
    """The earliest and the latest beginning of a window in each file."""
    from fluvial.delta.snapshot import read_snapshot
    from fluvial.tables.declare.windows import WINDOW_START

    snapshot = read_snapshot(path)
    stats = [] if snapshot is None else [json.loads(each.get("stats") or "{}") for each in snapshot.added]
    found = [(each.get(kind) or {}).get(WINDOW_START) for each in stats for kind in ("minValues", "maxValues")]
    return [datetime.fromisoformat(text).astimezone(UTC) for text in found if text is not None]


def newest_window(
    settings: Settings, topic: str, partitions: dg.TimeWindowPartitionsDefinition, position: Offsets
) -> str | None:
    """
    Return the newest partition that has records which a table at `position` lacks; those before it come in with it.

    None where there is none (yet): Dagster counts a window only once it has ended, unless the partitions have an
    `end_offset`. Raises TopicError when the cluster does not answer.
    """
    newest, last = newest_timestamp(settings.cluster, topic), partitions.get_last_partition_window()
    if newest is None or last is None:
        return None
    moment = min(newest, _ms(last.start))
    key = partitions.get_partition_key_for_timestamp(moment / 1000)
    if not partitions.has_partition_key(key):
        return None
    end = partitions.time_window_for_partition_key(key).end
    (cut,) = cut_topic(settings.cluster, topic, [_ms(end)]).at
    return key if any(offset > position.get(partition, 0) for partition, offset in cut.items()) else None


def _ms(moment: datetime) -> int:
    return round(moment.astimezone(UTC).timestamp() * 1000)
