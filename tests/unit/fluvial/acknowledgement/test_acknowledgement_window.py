"""What of a partition is done, and what a later member learns of it, against sets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluvial.acknowledgement.window import METADATA_MAX, PREFIX, Window

GAPS = st.lists(st.integers(1, 4) | st.integers(1, 100_000), min_size=1, max_size=60)


def offsets_of(start: int, gaps: list[int]) -> list[int]:
    found, at = [], start - 1
    for gap in gaps:
        at += gap
        found.append(at)
    return found


def runs_of(offsets: set[int]) -> int:
    return sum(offset - 1 not in offsets for offset in offsets)


@given(data=st.data(), start=st.integers(0, 1000), gaps=GAPS, characters=st.sampled_from([METADATA_MAX, 60, 20, 15, 0]))
@settings(max_examples=400, deadline=None)
def test_a_later_member_passes_over_what_is_done_and_nothing_else(
    data: st.DataObject, start: int, gaps: list[int], characters: int
) -> None:
    offsets = offsets_of(start, gaps)
    window, done = Window(start), set[int]()
    # Crash after crash, each member takes some of what is left and acknowledges some of that.
    for _ in range(data.draw(st.integers(1, 4), "members")):
        first = window.committed
        assert first is not None
        handed = set()
        for offset in [each for each in offsets if each >= first][: data.draw(st.integers(0, len(offsets)), "taken")]:
            if window.take(offset):
                handed.add(offset)
            else:
                assert offset in done
        for offset in data.draw(st.permutations(sorted(handed)), "order"):
            if data.draw(st.booleans(), "acknowledged"):
                assert window.acknowledge(offset)
                assert not window.acknowledge(offset)
                done.add(offset)
                handed.discard(offset)
        assert window.open == len(handed)
        assert window.runs == runs_of(handed)
        committed, metadata = window.committed, window.metadata(characters)
        assert committed is not None
        assert len(metadata) <= characters
        assert not any(offset < committed for offset in handed)
        assert all(offset in done for offset in offsets if offset < committed)
        later = Window(committed, metadata)
        passed = {offset for offset in offsets if offset >= committed and not later.take(offset)}
        assert passed <= done
        if characters == METADATA_MAX:
            assert passed == {offset for offset in done if offset >= committed}
        done = {offset for offset in done if offset < committed} | passed
        window = Window(committed, metadata)


def test_nothing_done_ahead_looks_as_an_ordinary_commit() -> None:
    window = Window()
    assert (window.committed, window.metadata()) == (None, "")
    for offset in range(5, 9):
        assert window.take(offset)
    assert window.acknowledge(5)
    assert (window.committed, window.metadata()) == (6, "")
    for offset in range(6, 9):
        assert window.acknowledge(offset)
    assert (window.committed, window.metadata()) == (9, "")


def test_a_million_done_behind_one_that_is_stuck_are_a_few_characters() -> None:
    window = Window(0)
    for offset in range(1_000_000):
        window.take(offset)
        if offset:
            window.acknowledge(offset)
    assert (window.open, window.runs, window.committed) == (1, 1, 0)
    assert len(window.metadata()) < len(PREFIX) + 12


@pytest.mark.parametrize("metadata", ["someone's own", PREFIX, PREFIX + "%%%", PREFIX + "gA==", "fluvial.acks/2:AQE="])
def test_metadata_that_is_not_ours_or_damaged_is_as_none(metadata: str) -> None:
    window = Window(10, metadata)
    assert all(window.take(offset) for offset in range(10, 20))


def test_an_offset_cannot_come_twice() -> None:
    window = Window(10)
    window.take(10)
    with pytest.raises(ValueError, match="offset 10"):
        window.take(10)
