"""Where replicas go: never two on one broker, over all racks, and in even shares."""

from collections import Counter

import pytest
from cluster_driver import ClusterDriver
from hypothesis import given, settings
from hypothesis import strategies as st

from log_broker.core.cluster.placement import place
from log_broker.errors import BrokerError, ErrorCode


def shares(cluster: ClusterDriver) -> tuple[list[int], list[int]]:
    """Return how many replicas each broker holds and how many partitions it leads."""
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    for topic in cluster.image.topics.values():
        for partition in topic.partitions:
            held.update(partition.replicas)
            led[partition.leader] += 1
    return [held[node_id] for node_id in cluster.image.brokers], [led[node_id] for node_id in cluster.image.brokers]


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@given(st.data())
@settings(max_examples=80)
def test_no_broker_holds_or_leads_two_more_than_another(data: st.DataObject) -> None:
    brokers = data.draw(st.integers(1, 7), "brokers")
    topics = st.tuples(st.integers(1, 9), st.integers(1, brokers))
    cluster = ClusterDriver(*range(brokers))
    for number, (partitions, factor) in enumerate(data.draw(st.lists(topics, min_size=1, max_size=7), "topics")):
        topic = cluster.create(f"t{number}", partitions=partitions, replication_factor=factor)
        for partition in topic.partitions:
            assert len(set(partition.replicas)) == factor
            assert partition.leader == partition.replicas[0]
            assert partition.isr == partition.replicas
        held, led = shares(cluster)
        assert spread(held) <= 1
        assert spread(led) <= 1


@given(st.data())
@settings(max_examples=60)
def test_a_partition_is_on_as_many_racks_as_it_can_be(data: st.DataObject) -> None:
    racks = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4), "brokers of each rack")
    names = [f"rack {number}" for number, size in enumerate(racks) for _ in range(size)]
    factor = data.draw(st.integers(1, len(names)), "factor")
    cluster = ClusterDriver(*range(len(names)), racks=names)
    partitions = data.draw(st.integers(1, 12), "partitions")
    for partition in cluster.create(partitions=partitions, replication_factor=factor).partitions:
        used = Counter(names[node_id] for node_id in partition.replicas)
        assert len(used) == min(factor, len(racks))
        # One rack has two more than another only when the other has no more brokers.
        for name, count in used.items():
            for other in set(names) - {name}:
                assert used[other] >= count - 1 or used[other] == names.count(other)


def test_racks_of_one_size_have_even_shares() -> None:
    cluster = ClusterDriver(*range(6), racks=["a", "b", "c"] * 2)
    cluster.create(partitions=12, replication_factor=3)
    assert shares(cluster) == ([6] * 6, [2] * 6)


def test_the_layouts_that_are_often_drawn() -> None:
    two = ClusterDriver(1, 2)
    two.create(partitions=4, replication_factor=1)
    assert shares(two) == ([2, 2], [2, 2])
    three = ClusterDriver(1, 2, 3)
    three.create(partitions=3, replication_factor=3)
    assert shares(three) == ([3, 3, 3], [1, 1, 1])


def test_topics_of_any_replication_factor_stand_side_by_side() -> None:
    cluster = ClusterDriver(1, 2, 3)
    for factor in (1, 2, 3):
        topic = cluster.create(f"t{factor}", partitions=4, replication_factor=factor)
        assert {len(partition.replicas) for partition in topic.partitions} == {factor}


def test_an_added_broker_gets_its_share_of_new_partitions_and_no_old_ones() -> None:
    cluster = ClusterDriver(1, 2, 3)
    old = cluster.create("old", partitions=30, replication_factor=3)
    cluster.start(4)
    assert cluster.image.topics["old"] == old
    new = cluster.create("new", partitions=8, replication_factor=1)
    assert Counter(partition.leader for partition in new.partitions) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert cluster.create("single", partitions=1, replication_factor=1).partitions[0].leader == 4


@pytest.mark.parametrize(("brokers", "racks"), [(3, None), (6, ["a", "b", "c"] * 2), (9, None)])
def test_what_a_lost_broker_led_is_shared_by_those_that_have_it_too(brokers: int, racks: list[str] | None) -> None:
    cluster = ClusterDriver(*range(brokers), racks=racks or ())
    topic = cluster.create(partitions=10 * brokers, replication_factor=3)
    lost = [partition.replicas for partition in topic.partitions if partition.leader == 0]
    cluster.fence(0)
    now = cluster.image.topics[topic.name].partitions
    heirs = Counter(
        partition.leader for partition, before in zip(now, topic.partitions, strict=True) if before.leader == 0
    )
    assert len(lost) == 10
    others = {node_id for replicas in lost for node_id in replicas[1:]}
    assert set(heirs) == others
    assert max(heirs.values()) <= 10 // 2


def test_brokers_that_are_down_are_taken_last() -> None:
    cluster = ClusterDriver(1, 2, 3, 4, racks=["a", "a", "b", "c"])
    cluster.fence(3)
    cluster.fence(4)
    for replicas in place(cluster.image, 6, 3):
        assert set(replicas[:2]) == {1, 2}
        assert replicas[2] in {3, 4}


def test_partitions_are_added_while_a_broker_is_down_and_it_is_not_in_sync_there() -> None:
    cluster = ClusterDriver(1, 2, 3)
    cluster.create(partitions=1, replication_factor=3)
    cluster.fence(3)
    with pytest.raises(BrokerError) as refused:
        cluster.create("other", partitions=1, replication_factor=3)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.add_partitions("t", 4)
    for partition in cluster.image.topics["t"].partitions[1:]:
        assert set(partition.replicas) == {1, 2, 3}
        assert set(partition.isr) == {1, 2}
        assert partition.leader in partition.isr


def test_what_is_too_many_or_has_nobody_to_lead_is_refused() -> None:
    cluster = ClusterDriver(1, 2)
    for fenced in ((), (1, 2)):
        for node_id in fenced:
            cluster.fence(node_id)
        with pytest.raises(BrokerError) as refused:
            place(cluster.image, 1, 2 if fenced else 3)
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_given_assignment_may_name_a_broker_that_is_down_but_not_only_such() -> None:
    cluster = ClusterDriver(1, 2, 3)
    cluster.fence(1)
    partition = cluster.create(assignments={0: (1, 3)}).partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 3), (3,), 3)
    for wrong in ({0: (1,)}, {0: (2, 3), 1: (2,)}, {0: (2, 2)}, {0: (2, 9)}, {0: ()}, {1: (2,)}):
        with pytest.raises(BrokerError) as refused:
            cluster.create("other", assignments=wrong)
        assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    for wrong_added in ((2,), (1, 1), (2, 9)):
        with pytest.raises(BrokerError) as refused:
            cluster.add_partitions("t", 2, [wrong_added])
        assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.add_partitions("t", 2, [(2, 1)])
    assert cluster.partition(1).isr == (2,)
