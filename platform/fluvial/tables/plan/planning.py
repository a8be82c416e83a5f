"""
What a run has to read: from where the table stands to where the topic ends. Pure: nothing is asked or written here.
"""

from fluvial.delta.errors import TableError
from fluvial.delta.stamp import Position
from fluvial.spark.kafka import Span, TopicBounds


class GapError(TableError):
    """
    The log lost records that the table has not read.

    `lost` holds [first, end) of the lost offsets by partition.
    """

    def __init__(self, table: str, topic: str, lost: dict[int, tuple[int, int]]) -> None:
        self.lost = lost
        ranges = ", ".join(f"partition {number}: offsets {a} to {b - 1}" for number, (a, b) in sorted(lost.items()))
        count = sum(b - a for a, b in lost.values())
        super().__init__(
            f"{table} missed up to {count} records of {topic} that retention removed before they were read ({ranges}); "
            f"raise the topic's retention, and `fluvial run --rebuild {table} --from-what-is-left`"
        )


def plan_span(table: str, position: Position, bounds: TopicBounds) -> Span:
    """
    The records that `table` has not got; every partition is in the span, those with nothing new as an empty range.

    Raises :class:`GapError` when the log starts past the table's position, and :class:`TableError` when the topic is
    not the one the table was built from.
    """
    stamp = position.stamp
    again = f"`fluvial run --rebuild {table}` builds it again"
    if stamp is not None:
        if stamp.topic != bounds.topic:
            raise TableError(f"{table} was built from topic {stamp.topic}, not {bounds.topic}: {again}")
        if stamp.topic_id and bounds.topic_id and stamp.topic_id != bounds.topic_id:
            raise TableError(
                f"topic {bounds.topic} was deleted and recreated since {table} was built from it: {again}, or declare "
                "the new topic under another table name"
            )
        gone = sorted(stamp.offsets.keys() - bounds.ends.keys())
        if gone:
            raise TableError(f"topic {bounds.topic} no longer has partition {gone[0]}, which {table} holds: {again}")
    ends = position.ends
    lost = {
        partition: (ends[partition], start)
        for partition, start in bounds.starts.items()
        if ends.get(partition, start) < start
    }
    if lost:
        raise GapError(table, bounds.topic, lost)
    for partition, end in sorted(ends.items()):
        if bounds.ends[partition] < end:
            raise TableError(
                f"partition {partition} of {bounds.topic} ends at offset {bounds.ends[partition]} and {table} has read "
                f"up to {end}: the topic was recreated or lost records: {again}"
            )
    return Span(
        topic=bounds.topic,
        ranges={
            partition: (ends.get(partition, bounds.starts[partition]), end)
            for partition, end in sorted(bounds.ends.items())
        },
    )


def has_new_records(span: Span) -> bool:
    """
    Whether there is any offset to read.
    """
    return span.records_max > 0
