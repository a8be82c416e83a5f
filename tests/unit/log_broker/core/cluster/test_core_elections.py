"""Who leads after a broker came or went, by whose wish, and who is eligible when nobody is in sync (KIP-966)."""

import pytest
from cluster_driver import SESSION_MS, ClusterDriver

from log_broker.core.cluster import elections
from log_broker.core.cluster.broker_registry import Heartbeat
from log_broker.core.cluster.elections import PREFERRED, UNCLEAN
from log_broker.core.cluster.image import NO_LEADER
from log_broker.errors import BrokerError, ErrorCode


def three(**overrides: str) -> ClusterDriver:
    """Return brokers 1, 2, 3 with partition t-0 on them in that order."""
    cluster = ClusterDriver(1, 2, 3)
    cluster.create(assignments={0: (1, 2, 3)}, overrides={key.replace("_", "."): it for key, it in overrides.items()})
    return cluster


def refusal(cluster: ClusterDriver, election_type: int, index: int = 0, name: str = "t") -> ErrorCode:
    with pytest.raises(BrokerError) as refused:
        cluster.elect(election_type, index, name)
    return refused.value.code


def test_the_next_in_sync_leads_when_the_leader_is_fenced() -> None:
    cluster = three()
    cluster.fence(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (2, (2, 3), ())
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)


def test_a_follower_that_is_fenced_leaves_the_isr_and_the_leader_stays_in_its_epoch() -> None:
    cluster = three()
    cluster.fence(3)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch, partition.partition_epoch) == (1, (1, 2), 0, 1)


def test_only_who_is_in_sync_leads() -> None:
    cluster = three()
    cluster.want_isr(1, 3)
    cluster.fence(1)
    assert cluster.partition().leader == 3
    cluster.fence(3)
    assert cluster.partition().leader == NO_LEADER, "2 is up, but it is behind"


def test_who_leaves_an_isr_below_its_minimum_is_eligible() -> None:
    cluster = three()
    assert cluster.want_isr(1, 2).elr == ()
    assert cluster.want_isr(1).elr == (2,)
    cluster.fence(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), (1,))
    assert partition.leader_epoch == 1


def test_the_elr_is_empty_when_the_isr_has_its_minimum_again() -> None:
    cluster = three()
    cluster.want_isr(1)
    assert cluster.partition().elr == (2, 3)
    assert cluster.want_isr(1, 3).elr == ()


def test_an_isr_of_nobody_is_led_by_the_first_eligible_one_that_returns() -> None:
    cluster = three()
    for node_id in (1, 2, 3):
        cluster.fence(node_id)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), (2, 3))
    assert partition.last_known_leader == 3
    cluster.start(1)
    assert cluster.partition().leader == NO_LEADER, "1 left while the two others went on"
    cluster.start(2)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), (3,))
    assert partition.last_known_leader == NO_LEADER
    assert not partition.recovering


def test_a_partition_of_one_replica_waits_for_that() -> None:
    cluster = ClusterDriver(1)
    cluster.create(partitions=1)
    cluster.fence(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), (1,))
    cluster.start(1, "second")
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr, partition.leader_epoch) == (1, (1,), (), 2)


def test_a_process_that_is_replaced_within_its_session_leads_in_a_new_epoch() -> None:
    cluster = ClusterDriver()
    cluster.start(1, directory="d")
    cluster.create(partitions=1)
    cluster.register(1, "second", directory="d")
    assert cluster.partition().leader == NO_LEADER
    cluster.beat(1)
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, 2)


def test_the_minimum_is_two_or_as_many_as_there_are_and_what_is_set_holds() -> None:
    cluster = ClusterDriver(1, 2, 3)
    for factor, least in ((1, 1), (2, 2), (3, 2)):
        topic = cluster.create(f"t{factor}", partitions=1, replication_factor=factor)
        assert topic.min_isr(0) == least
    for text, least in (("1", 1), ("3", 3), ("5", 3)):
        cluster.configure("t3", min_insync_replicas=text)
        assert cluster.image.topics["t3"].min_isr(0) == least


def test_with_a_minimum_of_one_only_the_last_in_sync_is_eligible() -> None:
    cluster = three(min_insync_replicas="1")
    assert cluster.want_isr(1).elr == ()
    cluster.fence(1)
    partition = cluster.partition()
    assert (partition.leader, partition.elr) == (NO_LEADER, (1,))


def test_a_lower_minimum_makes_no_replica_eligible_that_may_miss_new_records() -> None:
    cluster = three()
    cluster.want_isr(1)
    assert cluster.partition().elr == (2, 3)
    cluster.configure("t", min_insync_replicas="1")
    assert cluster.partition().elr == ()


def test_a_lower_minimum_leaves_those_eligible_without_whom_there_would_be_nobody() -> None:
    cluster = three()
    for node_id in (3, 2, 1):
        cluster.fence(node_id)
    cluster.configure("t", min_insync_replicas="1")
    assert cluster.partition().elr == (1, 2)
    cluster.start(2)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), ())


def test_a_leader_that_has_not_seen_a_higher_minimum_cannot_make_its_isr_smaller() -> None:
    cluster = three(min_insync_replicas="1")
    old = cluster.partition()
    cluster.configure("t", min_insync_replicas="2")
    assert cluster.partition().partition_epoch == old.partition_epoch + 1
    with pytest.raises(BrokerError) as refused:
        cluster.want_isr(1, partition_epoch=old.partition_epoch)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.want_isr(1).elr == (2, 3)


@pytest.mark.parametrize("durability", ["memory", "fsync-leader"])
def test_who_died_without_its_disk_is_not_eligible_where_others_are(durability: str) -> None:
    cluster = three(**{"fluvial_durability": durability})
    cluster.want_isr(1)
    cluster.fence(1)
    cluster.fence(2)
    assert (cluster.partition().leader, cluster.partition().elr) == (3, (1, 2))
    cluster.start(2, "second")
    assert cluster.partition().elr == (1,)
    cluster.start(1, "second", previous_epoch=cluster.image.brokers[1].epoch)
    assert cluster.partition().elr == (1,), "it stopped in order"


def test_the_last_that_is_eligible_stays_so_whatever_it_lost() -> None:
    cluster = three(**{"fluvial_durability": "memory"})
    for node_id in (1, 2, 3):
        cluster.fence(node_id)
    assert cluster.partition().elr == (2, 3)
    cluster.start(2, "second")
    assert (cluster.partition().leader, cluster.partition().elr) == (NO_LEADER, (3,))
    cluster.start(3, "second")
    assert cluster.partition().leader == 3


def test_what_is_synced_is_there_after_any_end() -> None:
    cluster = three()
    cluster.want_isr(1)
    cluster.fence(1)
    cluster.fence(2)
    cluster.start(2, "second")
    assert cluster.partition().elr == (1, 2)


def test_an_empty_directory_is_never_eligible_not_even_as_the_last() -> None:
    cluster = ClusterDriver()
    cluster.start(1, directory="old disk")
    cluster.start(2, directory="another")
    cluster.create(assignments={0: (1, 2)}, overrides={"min.insync.replicas": "1"})
    cluster.want_isr(1)
    cluster.fence(2)
    cluster.now_ms = SESSION_MS
    cluster.start(1, "second", directory="new disk")
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), ())
    assert partition.last_known_leader == 1
    assert cluster.elect(UNCLEAN).leader == 1


def test_the_only_replica_leads_also_with_an_empty_directory() -> None:
    cluster = ClusterDriver()
    cluster.start(1, directory="old disk")
    cluster.create(partitions=1)
    cluster.now_ms = SESSION_MS
    cluster.start(1, "second", directory="new disk")
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.recovering) == (1, (1,), True)


def test_a_replica_on_an_empty_disk_comes_back_into_the_isr_by_its_leader_only() -> None:
    cluster = ClusterDriver()
    for node_id in (1, 2, 3):
        cluster.start(node_id, directory=f"disk {node_id}")
    cluster.create(assignments={0: (1, 2, 3)})
    cluster.now_ms = SESSION_MS
    cluster.start(1, "second", directory="new disk")
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2, 3))
    assert cluster.want_isr(2, 3, 1).isr == (2, 3, 1)


def test_an_unclean_election_is_held_only_where_it_is_wanted() -> None:
    for wanted in ("false", "true"):
        cluster = three(unclean_leader_election_enable=wanted)
        cluster.want_isr(1, 2)
        cluster.fence(2)
        cluster.fence(1)
        partition = cluster.partition()
        if wanted == "false":
            assert (partition.leader, partition.elr, partition.recovering) == (NO_LEADER, (1, 2), False)
        else:
            assert (partition.leader, partition.isr, partition.elr) == (3, (3,), ())
            assert partition.recovering


def test_unclean_elections_are_held_at_once_when_they_are_allowed() -> None:
    cluster = three()
    cluster.want_isr(1, 2)
    cluster.fence(2)
    cluster.fence(1)
    cluster.configure("t", unclean_leader_election_enable="true")
    assert (cluster.partition().leader, cluster.partition().recovering) == (3, True)


def test_who_returns_leads_uncleanly_where_that_is_wanted() -> None:
    cluster = three(unclean_leader_election_enable="true", min_insync_replicas="1")
    cluster.want_isr(1)
    for node_id in (3, 2, 1):
        cluster.fence(node_id)
    assert cluster.partition().leader == NO_LEADER
    cluster.start(3)
    assert (cluster.partition().leader, cluster.partition().recovering) == (3, True)


def test_a_leader_that_recovered_says_so_and_only_then_takes_others_in() -> None:
    cluster = three(unclean_leader_election_enable="true")
    cluster.want_isr(1, 2)
    cluster.fence(2)
    cluster.fence(1)
    cluster.start(1)
    with pytest.raises(BrokerError) as refused:
        cluster.want_isr(3, 1, is_recovering=True)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert cluster.want_isr(3, is_recovering=True).recovering
    partition = cluster.want_isr(3, 1, is_recovering=False)
    assert (partition.isr, partition.recovering) == ((3, 1), False)
    with pytest.raises(BrokerError, match="recovers"):
        cluster.want_isr(3, is_recovering=True)


def test_the_last_leader_is_preferred_among_the_unclean() -> None:
    cluster = ClusterDriver()
    for node_id in (1, 2):
        cluster.start(node_id, directory=f"disk {node_id}")
    cluster.create(assignments={0: (1, 2)}, overrides={"min.insync.replicas": "1"})
    cluster.want_isr(1)
    cluster.fence(1)
    assert cluster.partition().last_known_leader == 1
    cluster.start(1, "second", directory="new disk")
    cluster.configure("t", unclean_leader_election_enable="true")
    assert (cluster.partition().leader, cluster.partition().recovering) == (1, True)


def test_the_preferred_leader_is_elected_when_it_is_asked_for() -> None:
    cluster = three()
    assert refusal(cluster, PREFERRED) is ErrorCode.ELECTION_NOT_NEEDED
    cluster.fence(1)
    assert refusal(cluster, PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.start(1)
    assert refusal(cluster, PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "it is up, but behind"
    cluster.want_isr(2, 3, 1)
    partition = cluster.elect(PREFERRED)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (2, 3, 1), 2)


def test_an_unclean_election_that_is_asked_for_needs_a_partition_without_leader() -> None:
    cluster = three()
    assert refusal(cluster, UNCLEAN) is ErrorCode.ELECTION_NOT_NEEDED
    cluster.want_isr(1)
    for node_id in (1, 2, 3):
        cluster.fence(node_id)
    assert refusal(cluster, UNCLEAN) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster = three()
    cluster.want_isr(1, 2)
    cluster.fence(2)
    cluster.fence(1)
    partition = cluster.elect(UNCLEAN)
    assert (partition.leader, partition.isr, partition.elr, partition.recovering) == (3, (3,), (), True)


def test_what_is_not_there_cannot_have_an_election() -> None:
    cluster = three()
    assert refusal(cluster, PREFERRED, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(cluster, PREFERRED, -1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(cluster, UNCLEAN, 0, "other") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(cluster, 2) is ErrorCode.INVALID_REQUEST


def test_a_preferred_election_is_never_unclean() -> None:
    cluster = three(unclean_leader_election_enable="true")
    cluster.want_isr(1, 2)
    cluster.fence(3)
    cluster.fence(2)
    cluster.fence(1)
    with pytest.raises(BrokerError):
        cluster.elect(PREFERRED)
    assert cluster.partition().leader == NO_LEADER


def test_leaderships_are_given_back_when_too_many_are_elsewhere() -> None:
    cluster = ClusterDriver(1, 2, 3)
    cluster.create(partitions=30, replication_factor=3)
    cluster.fence(1)
    cluster.start(1)
    assert elections.level(cluster.image, 10) == [], "1 is not in sync"
    mine = [index for index in range(30) if cluster.partition(index).replicas[0] == 1]
    for index in mine:
        cluster.want_isr(*cluster.partition(index).isr, 1, index=index)
    assert elections.level(cluster.image, 100) == []
    some = elections.level(cluster.image, 10, elections_max=3)
    assert len(some) == 3
    cluster.commit(elections.level(cluster.image, 10))
    assert [cluster.partition(index).leader for index in mine] == [1] * len(mine)
    assert elections.level(cluster.image, 0) == []


def test_a_few_leaderships_elsewhere_are_left_there() -> None:
    cluster = ClusterDriver(1, 2)
    cluster.create(partitions=20, replication_factor=2)
    cluster.fence(1)
    cluster.start(1)
    mine = [index for index in range(20) if cluster.partition(index).replicas[0] == 1]
    for index in mine:
        cluster.want_isr(2, 1, index=index)
    for index in mine[1:]:
        cluster.elect(PREFERRED, index)
    assert elections.level(cluster.image, 10) == [], "one of ten is 10 %, not more"
    assert len(elections.level(cluster.image, 9)) == 1


def test_several_that_are_lost_at_once_are_fenced_one_after_the_other() -> None:
    cluster = three()
    cluster.now_ms = SESSION_MS - 1
    cluster.beat(3)
    cluster.now_ms = SESSION_MS
    assert cluster.expire() == [1, 2]
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (3, (3,), (2,))


def test_a_broker_whose_disk_takes_no_writes_leads_nothing_that_others_can() -> None:
    cluster = three()
    told = cluster.beat(1, takes_writes=False)
    assert not told.is_caught_up, "its lease begins again when it knows who leads now"
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2, 3), 1)
    assert not cluster.beat(1, takes_writes=False).records
    assert cluster.image.is_alive(1)


def test_what_is_handed_over_and_not_committed_yet_prolongs_no_lease() -> None:
    cluster = three()
    beat = Heartbeat(1, cluster.image.brokers[1].epoch, cluster.image.version, takes_writes=False)
    told = cluster.registry.heartbeat(cluster.image, beat, cluster.now_ms)
    decided = cluster.image.draft()
    for record in told.records:
        decided.replay(record)
    again = cluster.registry.heartbeat(decided, beat, cluster.now_ms)
    assert (list(again.records), again.is_caught_up) == ([], False)
    able = beat._replace(takes_writes=True)
    assert not cluster.registry.heartbeat(cluster.image, able, cluster.now_ms).is_caught_up
    cluster.commit(told.records)
    assert cluster.beat(1).is_caught_up


def test_a_follower_whose_disk_takes_no_writes_is_waited_for_no_more() -> None:
    cluster = three()
    cluster.beat(3, takes_writes=False)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1, 2), 0)


@pytest.mark.parametrize(("least", "leader", "isr"), [("1", 3, (3,)), ("2", 2, (2, 3))])
def test_no_more_is_handed_over_than_leaves_the_minimum(least: str, leader: int, isr: tuple[int, ...]) -> None:
    cluster = three(min_insync_replicas=least)
    cluster.beat(1, takes_writes=False)
    cluster.beat(2, takes_writes=False)
    assert (cluster.partition().leader, cluster.partition().isr) == (leader, isr)
    cluster.beat(3, takes_writes=False)
    assert (cluster.partition().leader, cluster.partition().isr) == (leader, isr), "somebody is to be read from"


def test_who_has_room_again_takes_over_from_who_has_none() -> None:
    cluster = three()
    cluster.want_isr(1, 2)
    cluster.beat(2, takes_writes=False)
    assert not cluster.beat(1, takes_writes=False).records
    cluster.beat(2)
    assert not cluster.beat(1, takes_writes=False).records, "2 alone is below the minimum"
    cluster.want_isr(1, 2, 3)
    cluster.beat(1, takes_writes=False)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2, 3))


def test_the_only_replica_keeps_leading_whatever_its_disk_takes() -> None:
    cluster = ClusterDriver(1, 2)
    cluster.create(assignments={0: (1,)})
    assert not cluster.beat(1, takes_writes=False).records
    assert cluster.partition().leader == 1


def test_another_controller_is_told_of_the_disk_and_a_new_process_has_one_that_works() -> None:
    cluster = three()
    cluster.beat(1, takes_writes=False)
    cluster.lead()
    assert not cluster.registry.unable
    cluster.beat(1, takes_writes=False)
    assert set(cluster.registry.unable) == {1}
    cluster.fence(1)
    cluster.start(1, "second")
    assert not cluster.registry.unable


def test_a_broker_that_holds_something_is_not_struck_off() -> None:
    cluster = three()
    for node_id, code in (
        (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (3, ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(BrokerError) as refused:
            elections.unregister(cluster.image, node_id)
        assert refused.value.code is code
    cluster.fence(3)
    with pytest.raises(BrokerError, match="has replicas of t"):
        elections.unregister(cluster.image, 3)
    cluster.reassign((1, 2))
    cluster.commit([elections.unregister(cluster.image, 3)])
    assert 3 not in cluster.image.brokers


@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_fewer_needed_copies_mean_more_availability_and_less_safety(least: int, failures: int) -> None:
    """With m copies asked for, acks=all goes on while m are up, and what it acknowledged survives any m - 1 disks."""
    cluster = three(min_insync_replicas=str(least))
    for node_id in range(1, failures + 1):
        cluster.fence(node_id)
    partition = cluster.partition()
    is_writable = partition.leader != NO_LEADER and len(partition.isr) >= least
    assert is_writable is (3 - failures >= least)

    cluster = ClusterDriver()
    for node_id in (1, 2, 3):
        cluster.start(node_id, directory=f"disk {node_id}")
    cluster.create(assignments={0: (1, 2, 3)}, overrides={"min.insync.replicas": str(least)})
    holders = cluster.want_isr(*range(1, least + 1)).isr  # as few as may be when something is acknowledged
    cluster.now_ms = SESSION_MS
    for node_id in holders[:failures]:
        cluster.start(node_id, "second", directory="a new disk of " + str(node_id))
    partition = cluster.partition()
    with_all = set(holders[failures:])
    assert {*partition.isr, *partition.elr} == with_all
    assert (partition.leader in with_all) is (failures < least)
    if failures >= least:
        assert partition.leader == NO_LEADER, "what is lost is not passed over in silence"
