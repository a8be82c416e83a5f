"""
What part of a table is made again, and the stamp of the commit that does it to a table of a topic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fluvial.delta.errors import TableError
from fluvial.delta.stamp import Position, Range, Stamp, new_run_id
from fluvial.spark.kafka import TopicBounds
from fluvial.spark.offset_times import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """
    A `window` of time, or without one `offsets`: by topic and partition the range [start, end).
    """

    window: Window | None = None
    offsets: Mapping[str, Mapping[int, Range]] = field(default_factory=dict)


def rewriting_stamp(table: str, position: Position, bounds: TopicBounds, ranges: Mapping[int, Range]) -> Stamp:
    """
    The stamp of a commit that makes again what of `ranges` a table at `position` has read and the log still holds.

    Raises TableError where there is no table, or its topic is another by now.
    """
    known = position.stamp
    if known is None:
        raise TableError(f"{table} does not exist: run it first (`fluvial run {table}`)")
    if known.topic_id and bounds.topic_id and known.topic_id != bounds.topic_id:
        raise TableError(
            f"topic {bounds.topic} was deleted and recreated since {table} was built from it: its rows cannot be "
            "rebuilt"
        )
    return replace(
        known,
        batch=known.batch + 1,
        offsets={partition: (end, end) for partition, end in position.ends.items()},
        removed=0,
        rewritten=clipped(ranges, bounds.starts, position.ends),
        run=new_run_id(),
    )


def clipped(ranges: Mapping[int, Range], starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, Range]:
    """
    What of the ranges is not below the starts and below the ends, of partitions that have one.
    """
    found = {}
    for partition, (start, end) in sorted(ranges.items()):
        first, last = max(start, starts.get(partition, start)), min(end, ends.get(partition, start))
        if first < last:
            found[partition] = (first, last)
    return found
