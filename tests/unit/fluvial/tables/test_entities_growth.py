"""What a table that needs an order reads of a topic that got more partitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluvial.delta.stamp import Growth, Position, Stamp, TableError
from fluvial.spark.kafka import Span
from fluvial.tables.plan.growth import cut, seen_growth

RANGES = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair)))


def span_of(count: int, length: int = 5) -> Span:
    return Span(topic="t", ranges=dict.fromkeys(range(count), (0, length)))


def at(count: int, growth: Growth | None = None) -> Position:
    offsets = dict.fromkeys(range(count), (0, 3))
    return Position(version=1, stamp=Stamp(topic="t", topic_id="one", batch=1, offsets=offsets, growth=growth))


def test_a_growth_is_timed_from_when_it_was_first_seen_and_again_by_the_next_one() -> None:
    assert seen_growth("state.s", span_of(3), at(3), 1000) is None
    assert seen_growth("state.s", span_of(3), Position(version=None, stamp=None), 1000) is None
    first = seen_growth("state.s", span_of(6), at(3), 1000)
    assert first == Growth(6, 1000)
    assert seen_growth("state.s", span_of(6), at(3, first), 2000) == first
    assert seen_growth("state.s", span_of(12), at(3, first), 3000) == Growth(12, 3000)


def test_a_growth_by_no_multiple_is_refused() -> None:
    with pytest.raises(TableError, match=r"grew from 3 to 4 partitions, which is no multiple.*--rebuild state\.s"):
        seen_growth("state.s", span_of(4), at(3), 1000)


@given(old=st.lists(RANGES, max_size=3), new=st.lists(RANGES, max_size=3), data=st.data())
def test_nothing_new_is_read_before_all_that_is_old(
    old: list[tuple[int, int]], new: list[tuple[int, int]], data: st.DataObject
) -> None:
    span = Span(topic="t", ranges=dict(enumerate([*old, *new])))
    known = range(len(old))
    records = data.draw(st.none() | st.integers(1, 100), "records")
    until = data.draw(st.none() | st.dictionaries(st.sampled_from(range(6)), st.integers(0, 50)), "until")
    part = cut(span, known, until=until, records=records)
    for partition, (start, end) in part.ranges.items():
        assert start == span.ranges[partition][0]
        assert end <= span.ranges[partition][1]
    assert part.ranges.keys() >= set(known)
    if known and not part.ranges.keys() <= set(known):
        assert all(part.ranges[partition] == span.ranges[partition] for partition in known)
    if records is not None:
        assert part.records_max <= records + len(span.ranges), "each partition is rounded up"
        if until is None and part.records_max == 0:
            assert span.only(known or span.ranges.keys()).records_max == 0
    elif until is None:
        assert part == span
