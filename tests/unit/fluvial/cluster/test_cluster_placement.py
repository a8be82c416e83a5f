"""Where replicas and leaders should be: properties over random clusters, and cases that can be read."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluvial.cluster.picture import TopicPartition
from fluvial.cluster.placement import Layout, PlacementError, balanced, copies, drained, moved, spread_of


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[TopicPartition, tuple[int, ...]], list[int], dict[int, str | None]]:
    """A layout over some brokers, the brokers that it is to be on, and their racks."""
    before = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True))
    after = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True))
    most = min(len(before), len(after), 4)
    layout = {}
    for number in range(draw(st.integers(1, 24))):
        count = draw(st.integers(1, most))
        replicas = draw(st.permutations(before))[:count]
        layout[TopicPartition(f"t{number % 3}", number)] = tuple(replicas)
    racks = {node: draw(st.sampled_from([None, "a", "b", "c"])) for node in range(8)}
    return layout, after, racks


def rack_counts(replicas: tuple[int, ...], racks: dict[int, str | None]) -> Counter[str]:
    return Counter(racks[node] or "" for node in replicas)


def crowding(replicas: tuple[int, ...], racks: dict[int, str | None]) -> int:
    return sum(count * count for count in rack_counts(replicas, racks).values())


@given(clusters())
@settings(max_examples=100, deadline=None)
def test_every_rule_holds_for_any_cluster(cluster: tuple[Layout, list[int], dict[int, str | None]]) -> None:
    layout, brokers, racks = cluster
    after = balanced(layout, brokers, dict.fromkeys(brokers, "same"))
    for tp, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(layout[tp])
        assert set(replicas) <= set(brokers)
    # Without racks in the way replicas are even within one, whatever the layout was.
    held = [spread.replicas for spread in spread_of(after, brokers).values()]
    assert max(held) - min(held) <= 1
    assert balanced(after, brokers, dict.fromkeys(brokers, "same")) == after
    # With racks no partition is more crowded than it must be.
    racked = balanced(layout, brokers, racks)
    for replicas in racked.values():
        spare = [
            crowding((*(node for node in replicas if node != gone), come), racks)
            for gone in replicas
            for come in set(brokers) - set(replicas)
        ]
        assert crowding(replicas, racks) <= min(spare, default=crowding(replicas, racks))
    assert balanced(racked, brokers, racks) == racked


def full(brokers: list[int], partitions: int, factor: int) -> dict[TopicPartition, tuple[int, ...]]:
    """A layout as a topic gets it that is made on an even cluster."""
    count = len(brokers)
    return {
        TopicPartition("t", number): tuple(brokers[(number + at) % count] for at in range(factor))
        for number in range(partitions)
    }


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=50, deadline=None)
def test_leaders_are_even_within_one_and_no_more_is_copied_than_must(
    count: int, turns: int, factor: int, more: int
) -> None:
    factor = min(factor, count)
    before = full(list(range(count)), turns * count, factor)
    brokers = list(range(count + more))
    after = balanced(before, brokers, {})
    spread = spread_of(after, brokers).values()
    assert max(each.leaders for each in spread) - min(each.leaders for each in spread) <= 1
    # Only what the new brokers hold in the end was copied, and nothing between the old ones.
    new = sum(spread_of(after, brokers)[node].replicas for node in range(count, count + more))
    assert sum(map(len, copies(before, after).values())) == new


def test_a_broker_that_goes_hands_on_only_what_it_held() -> None:
    before = full([1, 2, 3, 4], 12, 2)
    after = balanced(before, [1, 2, 3], {})
    lost = {tp for tp, replicas in before.items() if 4 in replicas}
    assert {tp for tp, nodes in copies(before, after).items()} == lost
    spread = spread_of(after, [1, 2, 3])
    assert [each.leaders for each in spread.values()] == [4, 4, 4]


def test_an_even_cluster_is_left_alone() -> None:
    before = full([1, 2, 3], 9, 3)
    assert moved(before, balanced(before, [1, 2, 3], {})) == {}


def test_each_rack_gets_a_replica() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    before = {TopicPartition("t", number): (1, 2, 3) for number in range(12)}
    after = balanced(before, list(racks), racks)
    assert all(set(rack_counts(replicas, racks)) == {"a", "b", "c"} for replicas in after.values())
    assert {spread.replicas for spread in spread_of(after, list(racks)).values()} == {6}
    assert {spread.leaders for spread in spread_of(after, list(racks)).values()} == {2}


def test_leaders_alone_are_turned_without_a_copy() -> None:
    before = {TopicPartition("t", number): (1, 2, 3) for number in range(9)}
    after = balanced(before, [1, 2, 3], {})
    assert copies(before, after) == {}
    assert {spread.leaders for spread in spread_of(after, [1, 2, 3]).values()} == {3}


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(PlacementError, match="t-0 has 3 replicas and only 2 brokers"):
        balanced(full([1, 2, 3], 3, 3), [1, 2], {})


@pytest.mark.parametrize(("now", "then"), [(1, 3), (3, 2), (3, 1)])
def test_more_or_fewer_replicas(now: int, then: int) -> None:
    before = full([1, 2, 3], 9, now)
    after = balanced(before, [1, 2, 3], {}, factor=then)
    assert {len(replicas) for replicas in after.values()} == {then}
    spread = spread_of(after, [1, 2, 3]).values()
    assert {each.replicas for each in spread} == {3 * then}
    assert {each.leaders for each in spread} == {3}
    # Who holds a partition already goes on holding it.
    assert all(len(set(after[tp]) & set(before[tp])) == min(now, then) for tp in before)


def test_a_node_that_is_drained_moves_nothing_else() -> None:
    # Uneven on purpose, and node 4 is down: what they hold is not what is being moved.
    before = {
        TopicPartition("t", 0): (1, 2),
        TopicPartition("t", 1): (1, 3),
        TopicPartition("t", 2): (3, 4),
        TopicPartition("t", 3): (1, 2),
    }
    after = drained(before, 3, [1, 2, 3], {})
    assert after == {
        TopicPartition("t", 0): (1, 2),
        TopicPartition("t", 1): (1, 2),
        TopicPartition("t", 2): (4, 1),
        TopicPartition("t", 3): (1, 2),
    }
    with pytest.raises(PlacementError, match="no other broker is up"):
        drained({TopicPartition("t", 0): (1, 2), TopicPartition("t", 1): (1, 5)}, 2, [1, 2], {})
