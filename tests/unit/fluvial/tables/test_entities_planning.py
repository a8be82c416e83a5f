"""What a run reads, from a position and a topic's bounds."""

import pytest

from fluvial.delta.stamp import Position, Stamp, TableError
from fluvial.spark.kafka import Span, TopicBounds
from fluvial.tables.plan.planning import GapError, has_new_records, plan_span

NOTHING = Position(version=None, stamp=None)


def bounds(starts: dict[int, int], ends: dict[int, int], topic_id: str | None = "one") -> TopicBounds:
    return TopicBounds(topic="t", topic_id=topic_id, starts=starts, ends=ends)


def at(ends: dict[int, int], *, topic: str = "t", topic_id: str | None = "one") -> Position:
    offsets = {partition: (0, end) for partition, end in ends.items()}
    return Position(version=3, stamp=Stamp(topic=topic, topic_id=topic_id, batch=2, offsets=offsets))


def plan(position: Position, found: TopicBounds) -> Span:
    return plan_span("history.t", position, found)


def test_a_new_table_begins_where_the_log_does() -> None:
    span = plan(NOTHING, bounds({0: 0, 1: 7}, {0: 4, 1: 9}))
    assert (dict(span.ranges), span.records_max, has_new_records(span)) == ({0: (0, 4), 1: (7, 9)}, 6, True)


def test_a_table_goes_on_where_it_stands() -> None:
    span = plan(at({0: 4, 1: 9}), bounds({0: 0, 1: 7}, {0: 6, 1: 9}))
    assert dict(span.ranges) == {0: (4, 6), 1: (9, 9)}
    assert not has_new_records(plan(at({0: 4, 1: 9}), bounds({0: 4, 1: 9}, {0: 4, 1: 9})))


def test_a_gap_names_what_is_lost() -> None:
    with pytest.raises(GapError, match="up to 5 records") as raised:
        plan(at({0: 4, 1: 9, 2: 1}), bounds({0: 6, 1: 9, 2: 4}, {0: 6, 1: 9, 2: 8}))
    assert raised.value.lost == {0: (4, 6), 2: (1, 4)}
    assert "partition 0: offsets 4 to 5, partition 2: offsets 1 to 3" in str(raised.value)


@pytest.mark.parametrize(
    ("position", "found", "said"),
    [
        (at({0: 4}), bounds({0: 0}, {0: 9}, "two"), "deleted and recreated"),
        (at({0: 4}, topic="u"), bounds({0: 0}, {0: 9}), "built from topic u"),
        (at({0: 4, 1: 1}), bounds({0: 0}, {0: 9}), "no longer has partition 1"),
        (at({0: 4}, topic_id=None), bounds({0: 0}, {0: 3}, None), "ends at offset 3"),
    ],
)
def test_another_topic_of_the_name_is_refused(position: Position, found: TopicBounds, said: str) -> None:
    with pytest.raises(TableError, match=said):
        plan(position, found)


def test_a_new_partition_is_read_from_its_start() -> None:
    grown = bounds({0: 0, 1: 0}, {0: 4, 1: 2})
    assert dict(plan(at({0: 4}), grown).ranges) == {0: (4, 4), 1: (0, 2)}


@pytest.mark.parametrize(("records", "parallelism", "tasks"), [(0, 8, 1), (1, 8, 1), (250_000, 8, 3), (10**9, 8, 8)])
def test_tasks_follow_the_size_of_the_span(records: int, parallelism: int, tasks: int) -> None:
    assert Span(topic="t", ranges={0: (0, records)}).tasks(parallelism) == tasks
