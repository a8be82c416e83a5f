"""Moving partitions between brokers: begun, changed, cancelled, complete."""

import pytest
from cluster_driver import ClusterDriver

from log_broker.core.cluster.elections import PREFERRED
from log_broker.core.cluster.image import NO_LEADER, PartitionImage
from log_broker.core.cluster.reassignments import moves, reassign
from log_broker.errors import BrokerError, ErrorCode


def six(*replicas: int) -> ClusterDriver:
    cluster = ClusterDriver(1, 2, 3, 4, 5, 6)
    cluster.create(assignments={0: replicas or (1, 2, 3)})
    return cluster


def parts(partition: PartitionImage) -> tuple[tuple[int, ...], ...]:
    return partition.replicas, partition.adding, partition.removing


def refusal(cluster: ClusterDriver, target: tuple[int, ...] | None, name: str = "t", index: int = 0) -> ErrorCode:
    with pytest.raises(BrokerError) as refused:
        cluster.reassign(target, index, name)
    return refused.value.code


def test_a_move_adds_first_and_takes_away_when_the_new_ones_are_in_sync() -> None:
    cluster = six()
    assert parts(cluster.reassign((4, 5, 6))) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert [(move.topic, move.partition) for move in moves(cluster.image)] == [("t", 0)]
    assert cluster.want_isr(1, 2, 3, 4, 5).is_moving
    partition = cluster.want_isr(1, 2, 3, 4, 5, 6)
    assert parts(partition) == ((4, 5, 6), (), ())
    assert (partition.leader, partition.isr, partition.leader_epoch) == (4, (4, 5, 6), 1)
    assert moves(cluster.image) == []


def test_a_leader_that_stays_goes_on_leading_in_a_new_epoch() -> None:
    cluster = six()
    cluster.reassign((4, 1))
    partition = cluster.want_isr(1, 2, 3, 4)
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((4, 1), 1, 1)
    assert cluster.elect(PREFERRED).leader == 4


def test_another_order_and_fewer_replicas_need_no_copy() -> None:
    cluster = six()
    partition = cluster.reassign((3, 2, 1))
    assert (parts(partition), partition.leader, partition.leader_epoch) == (((3, 2, 1), (), ()), 1, 0)
    partition = cluster.reassign((2, 3))
    assert (parts(partition), partition.leader, partition.isr) == (((2, 3), (), ()), 2, (2, 3))


def test_more_replicas_leave_the_leader_in_its_epoch() -> None:
    cluster = six(1)
    partition = cluster.reassign((1, 2, 3))
    assert parts(partition) == ((1, 2, 3), (2, 3), ())
    assert cluster.image.topics["t"].min_isr(0) == 1, "those that are still copied to are not asked for"
    partition = cluster.want_isr(1, 2, 3)
    assert (partition.isr, partition.leader_epoch, partition.is_moving) == ((1, 2, 3), 0, False)
    assert cluster.image.topics["t"].min_isr(0) == 2


def test_the_target_can_change_on_the_way_and_what_it_began_with_is_not_forgotten() -> None:
    cluster = six(1, 2)
    cluster.reassign((3, 4))
    cluster.want_isr(1, 2, 3)
    partition = cluster.reassign((5, 6))
    assert set(partition.replicas) == {1, 2, 3, 4, 5, 6}
    assert set(partition.removing) == {1, 2, 3, 4}
    assert partition.isr == (1, 2, 3)
    back = cluster.reassign(None)
    assert (parts(back), back.isr, back.leader) == (((1, 2), (), ()), (1, 2), 1)


def test_a_changed_move_completes_with_a_leader_of_the_new_target() -> None:
    cluster = six(1, 2)
    cluster.reassign((3, 4))
    cluster.want_isr(1, 2, 3)
    assert cluster.elect(PREFERRED).leader == 3
    cluster.reassign((5, 6))
    partition = cluster.want_isr(1, 2, 3, 5, 6)
    assert (parts(partition), partition.leader) == (((5, 6), (), ()), 5)


def test_a_cancelled_move_is_as_it_was() -> None:
    cluster = six()
    cluster.reassign((4, 5, 6))
    cluster.want_isr(1, 2, 3, 4)
    partition = cluster.reassign(None)
    assert (parts(partition), partition.isr, partition.leader) == (((1, 2, 3), (), ()), (1, 2, 3), 1)
    assert partition.leader_epoch == 1, "replicas went"


def test_the_wish_to_stay_ends_a_move_as_well() -> None:
    cluster = six()
    cluster.reassign((4, 5, 6))
    assert parts(cluster.reassign((1, 2, 3))) == ((1, 2, 3), (), ())


def test_there_is_no_way_back_to_replicas_that_are_behind() -> None:
    cluster = six(1, 2)
    cluster.reassign((3, 4))
    cluster.want_isr(1, 2, 3)
    cluster.elect(PREFERRED)
    cluster.configure("t", min_insync_replicas="1")
    cluster.want_isr(3)
    assert refusal(cluster, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.configure("t", unclean_leader_election_enable="true")
    partition = cluster.reassign(None)
    assert (partition.replicas, partition.leader, partition.isr, partition.recovering) == ((1, 2), 1, (1,), True)


def test_the_way_back_may_lead_over_one_that_is_eligible() -> None:
    cluster = six(1, 2)
    cluster.reassign((3, 4))
    cluster.want_isr(1, 2, 3)
    cluster.elect(PREFERRED)
    cluster.want_isr(3)
    assert cluster.partition().elr == (1, 2)
    partition = cluster.reassign(None)
    assert (partition.leader, partition.isr, partition.elr, partition.recovering) == (1, (1,), (2,), False)


def test_the_way_back_never_costs_the_only_replica_that_has_all() -> None:
    cluster = six(1, 2)
    cluster.reassign((3, 4))
    cluster.configure("t", min_insync_replicas="1")
    cluster.want_isr(1, 3)
    cluster.elect(PREFERRED)
    cluster.want_isr(3)
    cluster.fence(3)
    assert (cluster.partition().leader, cluster.partition().elr) == (NO_LEADER, (3,))
    assert refusal(cluster, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_dead_replica_is_replaced_by_a_living_one() -> None:
    cluster = six()
    cluster.fence(3)
    cluster.reassign((1, 2, 4))
    partition = cluster.want_isr(1, 2, 4)
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2, 4), (1, 2, 4), 1)


def test_a_move_may_name_a_broker_that_is_down_and_waits_for_it() -> None:
    cluster = six()
    cluster.fence(6)
    assert cluster.reassign((1, 2, 6)).is_moving
    cluster.start(6)
    assert cluster.want_isr(1, 2, 3, 6).replicas == (1, 2, 6)


def test_what_cannot_be_is_refused() -> None:
    cluster = six()
    assert refusal(cluster, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    for target in ((), (1, 1), (1, 9)):
        assert refusal(cluster, target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal(cluster, (1,), index=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(cluster, (1,), name="other") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(BrokerError) as refused:
        reassign(cluster.image, "t", 0, (1, 2), may_change_factor=False)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster.image, "t", 0, (1, 2, 4), may_change_factor=False) is not None


def test_moves_are_listed_by_topic() -> None:
    cluster = six()
    cluster.create("u", assignments={0: (1,), 1: (1,)})
    cluster.reassign((2,), 1, "u")
    cluster.reassign((4, 5, 6))
    assert [(move.topic, move.partition) for move in moves(cluster.image)] == [("t", 0), ("u", 1)]
    assert [(move.topic, move.partition) for move in moves(cluster.image, ["u", "none"])] == [("u", 1)]
