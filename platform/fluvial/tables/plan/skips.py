"""
Records that a user has a table leave out for good: `fluvial run --skip`. Its stamps carry them on. Pure.
"""

from collections.abc import Collection, Mapping

from fluvial.delta.errors import TableError
from fluvial.delta.stamp import Position, Skips
from fluvial.spark.kafka import TopicBounds

SkipsWanted = Mapping[int, Collection[int]]
"""Offsets by partition."""


def skips_of(table: str, wanted: SkipsWanted, position: Position, bounds: TopicBounds) -> Skips:
    """
    The offsets that a table has left out and is to leave out from now on.

    Raises :class:`TableError` for one that it has read, or that the topic does not have.
    """
    known = {} if position.stamp is None else position.stamp.skipped
    for partition, offsets in sorted(wanted.items()):
        if partition not in bounds.ends:
            raise TableError(f"{table}: --skip names partition {partition}, which {bounds.topic} does not have")
        for offset in sorted(set(offsets) - set(known.get(partition, ()))):
            if offset < position.ends.get(partition, 0):
                raise TableError(
                    f"{table} has read offset {offset} of partition {partition}: only `fluvial run --rebuild {table} "
                    f"--skip {bounds.topic}:{partition}={offset}` leaves it out"
                )
            if offset >= bounds.ends[partition]:
                raise TableError(
                    f"{table}: --skip names offset {offset} of partition {partition} of {bounds.topic}, which ends at "
                    f"{bounds.ends[partition]}"
                )
    return merged(known, wanted)


def merged(one: SkipsWanted, other: SkipsWanted) -> Skips:
    """
    The offsets of either, in order.
    """
    return {
        partition: tuple(sorted({*one.get(partition, ()), *other.get(partition, ())}))
        for partition in sorted({*one, *other})
    }
