"""
A span cut to what one batch takes.
"""

from hypothesis import given
from hypothesis import strategies as st

from fluvial.spark.kafka import Span

ranges = st.dictionaries(
    st.integers(0, 9), st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)).map(lambda r: (r[0], sum(r))), max_size=6
)


@given(ranges, st.integers(1, 10**6))
def test_the_first_part_of_a_span_takes_from_every_partition_with_new_records(
    given_ranges: dict[int, tuple[int, int]], records: int
) -> None:
    span = Span(topic="t", ranges=given_ranges)
    part = span.at_most(records)
    assert part.records_max <= max(records + len(given_ranges), 0)
    assert part.ranges.keys() == span.ranges.keys()
    for partition, (start, end) in span.ranges.items():
        first, last = part.ranges[partition]
        assert first == start
        assert (start < last <= end) if start < end else last == end
    if span.records_max <= records:
        assert part == span
