"""Registration, heartbeats and sessions of brokers, as the active controller decides on them."""

import pytest
from cluster_driver import SESSION_MS, ClusterDriver

from log_broker.core.cluster.broker_registry import check_broker_epoch
from log_broker.core.cluster.image import NO_LEADER
from log_broker.core.cluster.records import BrokerFenced, BrokerUnfenced
from log_broker.errors import BrokerError, ErrorCode


def test_a_broker_is_fenced_until_it_has_replayed_its_own_registration() -> None:
    cluster = ClusterDriver()
    epoch = cluster.register(1)
    assert not cluster.image.is_alive(1)
    early = cluster.beat(1, replayed=epoch - 1)
    assert (early.is_caught_up, early.is_fenced, list(early.records)) == (False, True, [])
    late = cluster.beat(1, replayed=epoch)
    assert (late.is_caught_up, late.is_fenced, list(late.records)) == (True, False, [BrokerUnfenced(node_id=1)])
    assert cluster.image.is_alive(1)


def test_a_broker_that_wants_to_be_fenced_stays_so() -> None:
    cluster = ClusterDriver()
    cluster.register(1)
    assert cluster.beat(1, wants_fence=True).is_fenced
    assert not cluster.image.is_alive(1)
    cluster.beat(1)
    assert cluster.beat(1, wants_fence=True).is_fenced
    assert not cluster.image.is_alive(1)


def test_a_broker_that_beats_is_never_fenced() -> None:
    cluster = ClusterDriver(1)
    for cluster.now_ms in range(0, 1_000, SESSION_MS - 1):
        assert cluster.expire() == []
        assert not cluster.beat(1).is_fenced


def test_a_silent_broker_is_fenced_when_its_session_ends_and_not_before() -> None:
    cluster = ClusterDriver(1)
    cluster.now_ms = 50
    cluster.start(2)
    assert cluster.registry.next_deadline_ms(cluster.image) == SESSION_MS
    cluster.now_ms = SESSION_MS - 1
    assert cluster.expire() == []
    cluster.now_ms = SESSION_MS
    assert cluster.expire() == [1]
    assert cluster.expire() == []
    assert cluster.registry.next_deadline_ms(cluster.image) == 50 + SESSION_MS


def test_a_fence_that_is_not_committed_yet_is_decided_again() -> None:
    cluster = ClusterDriver(1)
    for _ in range(2):
        assert cluster.registry.expired(cluster.image.draft(), SESSION_MS) == [BrokerFenced(node_id=1)]


def test_a_broker_that_was_fenced_registers_again_and_its_old_words_are_refused() -> None:
    cluster = ClusterDriver(1)
    old = cluster.image.brokers[1].epoch
    cluster.now_ms = SESSION_MS
    assert cluster.expire() == [1]
    for _ in range(2):
        with pytest.raises(BrokerError) as refused:
            cluster.beat(1, old)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
        new = cluster.start(1)
        assert new > old
    assert cluster.image.is_alive(1)
    assert check_broker_epoch(cluster.image, 1, new).node_id == 1


def test_two_processes_do_not_share_an_id() -> None:
    cluster = ClusterDriver()
    epoch = cluster.start(1, "a", directory="d1")
    for directory in ("d2", ""):
        with pytest.raises(BrokerError) as refused:
            cluster.register(1, "b", directory=directory)
        assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.now_ms = SESSION_MS
    assert cluster.register(1, "b", directory="d2") > epoch


def test_two_processes_that_start_at_once_do_not_share_an_id_either() -> None:
    cluster = ClusterDriver()
    cluster.register(1, "a")
    with pytest.raises(BrokerError, match="another process"):
        cluster.register(1, "b")


def test_the_same_data_directory_is_taken_over_at_once() -> None:
    cluster = ClusterDriver()
    epoch = cluster.start(1, "a", directory="d1")
    assert cluster.register(1, "b", directory="d1") > epoch
    assert not cluster.image.is_alive(1)


def test_a_data_directory_belongs_to_one_broker() -> None:
    cluster = ClusterDriver()
    cluster.start(1, directory="d1")
    with pytest.raises(BrokerError) as refused:
        cluster.register(2, directory="d1")
    assert refused.value.code is ErrorCode.INVALID_REGISTRATION


def test_a_registration_that_is_repeated_is_the_same_one() -> None:
    cluster = ClusterDriver()
    epoch = cluster.register(1)
    cluster.now_ms = 50
    assert cluster.register(1) == epoch
    cluster.beat(1)
    cluster.now_ms = 50 + SESSION_MS - 1
    assert cluster.expire() == []


def test_a_registration_carries_rack_and_address() -> None:
    cluster = ClusterDriver()
    cluster.start(3, rack="north", directory="d")
    broker = cluster.image.brokers[3]
    assert (broker.rack, broker.host, broker.port, broker.directory) == ("north", "host", 9095, "d")


def test_a_broker_that_leads_nothing_may_stop_at_once() -> None:
    cluster = ClusterDriver(1)
    answer = cluster.beat(1, wants_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert not cluster.image.is_alive(1)


def test_a_fenced_broker_may_stop_at_once() -> None:
    cluster = ClusterDriver()
    cluster.register(1)
    answer = cluster.beat(1, wants_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)


def test_a_stopping_broker_hands_over_its_leaderships_before_it_ends() -> None:
    cluster = ClusterDriver(1, 2, 3)
    cluster.create(partitions=3, replication_factor=3)
    assert not cluster.beat(1, wants_shut_down=True).should_shut_down
    assert (cluster.image.is_alive(1), cluster.image.may_lead(1)) == (True, False)
    for each in cluster.image.topics["t"].partitions:
        assert each.leader in {2, 3}
        assert 1 not in each.isr
    since = cluster.image.version
    assert not cluster.beat(1, wants_shut_down=True).should_shut_down
    cluster.beat(2)
    cluster.beat(3, replayed=since - 1)
    assert not cluster.beat(1, wants_shut_down=True).should_shut_down
    cluster.beat(3)
    assert cluster.beat(1, wants_shut_down=True).should_shut_down
    assert not cluster.image.is_alive(1)


def test_a_broker_that_stops_does_not_wait_for_one_that_is_silent() -> None:
    cluster = ClusterDriver(1, 2, 3)
    cluster.create(partitions=3, replication_factor=3)
    cluster.beat(1, wants_shut_down=True)
    cluster.now_ms = SESSION_MS // 3 + 1
    cluster.beat(2, replayed=0)
    assert not cluster.beat(1, wants_shut_down=True).should_shut_down
    cluster.beat(2)
    assert cluster.image.is_alive(3)
    assert cluster.beat(1, wants_shut_down=True).should_shut_down


def test_all_may_stop_at_once() -> None:
    cluster = ClusterDriver(1, 2)
    cluster.create(partitions=2, replication_factor=2)
    for node_id in (1, 2):
        assert not cluster.beat(node_id, wants_shut_down=True).should_shut_down
    assert [each.leader for each in cluster.image.topics["t"].partitions] == [NO_LEADER, NO_LEADER]
    for node_id in (1, 2):
        assert cluster.beat(node_id, wants_shut_down=True).should_shut_down
    for node_id in (1, 2):
        cluster.start(node_id, "second", directory="")
    assert all(each.leader != NO_LEADER for each in cluster.image.topics["t"].partitions)


def test_a_new_controller_gives_everyone_a_whole_session() -> None:
    cluster = ClusterDriver(1)
    cluster.now_ms = 1_000
    cluster.lead()
    cluster.now_ms = 1_000 + SESSION_MS - 1
    assert cluster.expire() == []
    cluster.beat(1)
    cluster.now_ms += SESSION_MS - 1
    assert cluster.expire() == []
    cluster.now_ms += 1
    assert cluster.expire() == [1]


def test_whoever_never_registered_is_told_so() -> None:
    with pytest.raises(BrokerError) as refused:
        ClusterDriver().beat(5, 1)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_who_has_not_replayed_the_last_change_of_leaders_is_not_caught_up() -> None:
    cluster = ClusterDriver(1, 2)
    before = cluster.image.version
    cluster.create(replication_factor=2)
    cluster.registry.leaders_changed(cluster.image)
    assert not cluster.beat(1, replayed=before).is_caught_up
    assert not cluster.beat(1, replayed=before).is_fenced
    assert cluster.beat(1, replayed=cluster.image.version).is_caught_up


def test_who_may_have_missed_a_change_of_leaders_has_until_its_lease_has_ended() -> None:
    cluster = ClusterDriver(1, 2)
    before = cluster.image.version
    cluster.beat(1, replayed=before)
    cluster.create(replication_factor=2)
    cluster.registry.leaders_changed(cluster.image)

    def may_have_missed() -> bool:
        return cluster.registry.may_have_missed_leaders(1, cluster.now_ms)

    cluster.now_ms += SESSION_MS - 1
    cluster.beat(1, replayed=before)  # it lives, and that prolongs nothing
    assert may_have_missed()
    cluster.now_ms += 1
    assert not may_have_missed()


def test_who_has_replayed_a_change_of_leaders_has_not_missed_it() -> None:
    cluster = ClusterDriver(1, 2)
    cluster.create(replication_factor=2)
    cluster.registry.leaders_changed(cluster.image)
    assert cluster.registry.may_have_missed_leaders(1, cluster.now_ms)
    cluster.beat(1)
    assert not cluster.registry.may_have_missed_leaders(1, cluster.now_ms)


def test_another_controller_does_not_know_what_was_replayed() -> None:
    cluster = ClusterDriver(1, 2)
    cluster.beat(1)
    cluster.now_ms = 1000
    cluster.lead()
    assert cluster.registry.may_have_missed_leaders(1, cluster.now_ms)
    assert not cluster.registry.may_have_missed_leaders(1, cluster.now_ms + SESSION_MS)


def test_what_an_earlier_process_has_replayed_does_not_count_for_the_next() -> None:
    cluster = ClusterDriver()
    cluster.start(1, "first", directory="d")
    cluster.registry.leaders_changed(cluster.image)
    cluster.beat(1)
    assert not cluster.registry.may_have_missed_leaders(1, cluster.now_ms)
    cluster.register(1, "second", directory="d")
    assert cluster.registry.may_have_missed_leaders(1, cluster.now_ms)
