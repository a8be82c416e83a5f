"""
Topics that get more partitions, under tables that need the records of a key in one order.

A key that moves goes from a partition that was there to one that is new, where the count becomes a multiple of what it
was and producers hash (`hash(key) % count`, as all of Kafka's do). Its later records are then in the new partition and
all earlier ones in the old, so a table keeps to the order if it reads the old ones, up to where the last producer left
them, before the first record of a new one. Producers learn of new partitions one by one, each within its
`metadata.max.age.ms`: the table remembers when it first saw them, and leaves them alone until that has passed.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from fluvial.delta.errors import TableError
from fluvial.delta.stamp import Growth, Position
from fluvial.kafka import KafkaCluster
from fluvial.spark.kafka import Span, TopicBounds
from fluvial.spark.offset_times import written_before

# Beyond that age, for transactions that were open when their producer learnt of the new partitions.
_MARGIN = 0.2


def in_order(
    table: str, span: Span, bounds: TopicBounds, position: Position, *, cluster: KafkaCluster, age_ms: int
) -> tuple[Span, Growth | None]:
    """
    The part of a span that a table which needs an order may read now, and the growth of its topic, if there is one.

    Raises as :func:`seen_growth` and :func:`may_join` do, which say when new partitions are part of it.
    """
    known, now_ms = position.ends.keys(), int(time.time() * 1000)
    growth = seen_growth(table, span, position, now_ms)
    if growth is None or may_join(growth, bounds, known, cluster, now_ms=now_ms, age_ms=age_ms):
        return span, growth
    return span.only(known), growth


def seen_growth(table: str, span: Span, position: Position, now_ms: int) -> Growth | None:
    """
    Since when the table knows of the partitions in a span that it has not read; None where there are none.

    Raises :class:`~fluvial.delta.errors.TableError` where keys may have moved between partitions that it has read.
    """
    known, stamp = position.ends.keys(), position.stamp
    if stamp is None or not span.ranges.keys() - known:
        return None
    if len(span.ranges) % len(known):
        raise TableError(
            f"topic {span.topic} grew from {len(known)} to {len(span.ranges)} partitions, which is no multiple: a "
            "key's records may now lie in two of the old ones, and no order holds between these: "
            f"`fluvial run --rebuild {table}` builds it again, or declare a state with "
            'order="…", the field that says which event is the later'
        )
    count = len(span.ranges)
    return stamp.growth if stamp.growth is not None and stamp.growth.count == count else Growth(count, now_ms)


def may_join(
    growth: Growth, bounds: TopicBounds, known: Collection[int], cluster: KafkaCluster, *, now_ms: int, age_ms: int
) -> bool:
    """
    Whether all that was written of the moved keys to the known partitions lies before these partitions' ends.

    `age_ms` is the producers' `metadata.max.age.ms`. Nothing may be held back by an open transaction that was written
    before that time had passed. Raises :class:`~fluvial.spark.kafka.TopicError` without an answer.
    """
    margin = int(age_ms * _MARGIN)
    if now_ms < growth.seen_ms + age_ms + margin:
        return False
    written = written_before(cluster, bounds.topic, known, now_ms - margin)
    return all(bounds.ends[each] >= written[each] for each in known)


def cut(
    span: Span, known: Collection[int], *, until: Mapping[int, int] | None = None, records: int | None = None
) -> Span:
    """
    The part of a span before the offsets `until`, and of that the first with about so many `records`.

    Partitions beside the `known` are in it only if all that the span has of these is.
    """
    part = span if until is None else span.until(until)
    if span.ranges.keys() <= set(known) or not known:
        return part if records is None else part.at_most(records)
    old, new = part.only(known), part.only(span.ranges.keys() - set(known))
    if records is not None:
        old, new = old.at_most(records), new.at_most(max(records - old.records_max, 0))
    return replace(span, ranges={**old.ranges, **new.ranges}) if old == span.only(known) else old
