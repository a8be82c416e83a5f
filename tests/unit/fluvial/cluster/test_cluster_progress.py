"""How far moves are, and how nodes stand: arithmetic over what a cluster tells."""

from fluvial.cli.cluster.cluster_status import node_lines
from fluvial.cluster.moves import progress_of
from fluvial.cluster.picture import Broker, LogDirs, Move, Partition, Picture, Quorum, TopicPartition

X = TopicPartition("x", 0)
MOVE = Move(tp=X, replicas=(4, 5, 1, 2), adding=(4, 5), removing=(1,))


def dirs(size: int | None) -> LogDirs:
    sizes = {} if size is None else {X: size}
    return LogDirs(sizes=sizes, total_bytes=1000, usable_bytes=900)


def test_new_replicas_are_held_against_the_largest_old_one() -> None:
    found = progress_of([MOVE], {1: dirs(90), 2: dirs(100), 4: dirs(25), 5: dirs(None)})[X]
    assert (found.copied_bytes, found.wanted_bytes, found.share) == (25, 200, 0.125)
    # One that overtakes what was looked at a moment before is no more than done.
    assert progress_of([MOVE], {1: dirs(90), 4: dirs(100), 5: dirs(100)})[X].share == 1.0


def test_a_broker_that_does_not_answer_holds_nothing() -> None:
    found = progress_of([MOVE], {2: dirs(100), 4: None})[X]
    assert (found.copied_bytes, found.wanted_bytes) == (0, 200)
    assert progress_of([MOVE], {})[X].share == 0.0


def test_the_target_of_a_move_is_where_a_partition_counts_as_being() -> None:
    partition = Partition(tp=X, leader=1, leader_epoch=3, replicas=(4, 5, 1, 2), isr=(1, 2), offline=())
    picture = Picture(cluster_id="c", brokers={}, partitions={X: partition}, moves={X: MOVE})
    assert picture.replicas_of(X) == (4, 5, 2)
    assert Picture(cluster_id="c", brokers={}, partitions={X: partition}).replicas_of(X) == (4, 5, 1, 2)


def test_nodes_that_are_down_are_listed_with_what_they_should_hold() -> None:
    brokers = {0: Broker(node_id=0, host="h", port=1, rack="a")}
    partition = Partition(tp=X, leader=0, leader_epoch=1, replicas=(1, 0), isr=(0,), offline=(1,))
    quorum = Quorum(leader=0, epoch=7, voters={0: 0, 2: 40}, observers={})
    picture = Picture(cluster_id="c", brokers=brokers, partitions={X: partition}, quorum=quorum)
    up, holder, voter = node_lines(picture, {0: dirs(10)}, {})
    assert (up.up, up.roles, up.leads, up.preferred, up.stored_bytes) == (
        True,
        ("controller", "voter", "broker"),
        1,
        0,
        10,
    )
    assert (holder.up, holder.preferred, holder.replicas, holder.in_sync) == (False, 1, 1, 0)
    assert (voter.up, voter.roles, voter.quorum_lag) == (False, ("voter",), 40)
