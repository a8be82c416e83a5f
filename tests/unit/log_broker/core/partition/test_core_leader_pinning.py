"""Leaders that are kept in the racks that a topic prefers (`fluvial.leaders.preference`)."""

from collections import Counter

import pytest
from cluster_driver import CONFIG, ClusterDriver

from log_broker.config.broker import TopicConfig
from log_broker.config.leaders import LEADERS_PREFERENCE, LeadersPreference
from log_broker.config.topic_keys import TOPIC_KEYS
from log_broker.core.cluster import controller, elections
from log_broker.core.cluster.controller import Alteration, Operation
from log_broker.core.cluster.feature_updates import first_levels
from log_broker.core.cluster.features import METADATA_VERSION, SUPPORTED, told_of
from log_broker.core.cluster.image import NO_LEADER
from log_broker.core.cluster.records import FeatureLevelSet
from log_broker.errors import BrokerError, ErrorCode

PINNED = {LEADERS_PREFERENCE: "racks:a,b"}
ORDERED = {LEADERS_PREFERENCE: "ordered_racks:b,a"}


def cluster(*racks: str | None) -> ClusterDriver:
    """Brokers from 1 on, one for each rack that is named."""
    driver = ClusterDriver()
    driver.commit(first_levels(SUPPORTED))
    for node_id, rack in enumerate(racks, 1):
        driver.start(node_id, rack=rack, features=told_of(SUPPORTED))
    return driver


def come_back(driver: ClusterDriver, node_id: int) -> None:
    driver.start(node_id, "again", rack=driver.image.brokers[node_id].rack, features=told_of(SUPPORTED))


def level(driver: ClusterDriver, percentage: int = 100) -> int:
    changes = elections.level(driver.image, percentage)
    driver.commit(changes)
    return len(changes)


@pytest.mark.parametrize(
    ("text", "preference"),
    [
        ("none", LeadersPreference()),
        ("racks:a", LeadersPreference(racks=("a",))),
        ("racks: a, b", LeadersPreference(racks=("a", "b"))),
        ("ordered_racks:b,a", LeadersPreference(racks=("b", "a"), is_ordered=True)),
    ],
)
def test_what_the_setting_means(text: str, preference: LeadersPreference) -> None:
    assert TopicConfig.from_overrides({LEADERS_PREFERENCE: text}).fluvial_leaders_preference == preference


@pytest.mark.parametrize(
    "text", ["", "a", "racks", "racks:", "racks:a,", "rack:a", "ordered_racks:,a", "none:a", "racks:a,a"]
)
def test_a_value_that_means_nothing_is_refused_with_the_repair(text: str) -> None:
    with pytest.raises(BrokerError) as error:
        TOPIC_KEYS[LEADERS_PREFERENCE].parse(text)
    assert error.value.code is ErrorCode.INVALID_CONFIG
    repair = "name each once" if text == "racks:a,a" else "none, racks:<rack>,<rack>… or ordered_racks:<rack>,<rack>…"
    assert repair in str(error.value)


def test_partitions_of_a_new_topic_are_led_evenly_in_the_preferred_racks() -> None:
    driver = cluster("a", "b", "c", "a", "b", "c")
    topic = driver.create(partitions=12, replication_factor=3, overrides=PINNED)
    assert Counter(each.leader for each in topic.partitions) == {1: 3, 2: 3, 4: 3, 5: 3}
    assert all(each.leader == each.replicas[0] for each in topic.partitions), "Kafka's tools agree on who is preferred"
    assert all(len({(each - 1) % 3 for each in part.replicas}) == 3 for part in topic.partitions), "racks are spread"
    driver.add_partitions("t", 14)
    assert {driver.image.brokers[driver.partition(index).leader].rack for index in (12, 13)} <= {"a", "b"}
    assert level(driver, 0) == 0
    first = driver.create("ordered", partitions=4, replication_factor=3, overrides=ORDERED)
    assert {driver.image.brokers[each.leader].rack for each in first.partitions} == {"b"}


def test_a_leader_that_goes_is_followed_by_one_in_a_preferred_rack() -> None:
    driver = cluster("c", "c", "a", "b")
    driver.create(assignments={0: (3, 1, 2, 4)}, overrides=PINNED)
    driver.fence(3)
    assert driver.partition().leader == 4, "not 1, which comes first of the replicas"
    driver.fence(4)
    assert driver.partition().leader == 1, "any that is in sync rather than none"


def test_only_who_is_in_sync_is_chosen_however_well_it_is_placed() -> None:
    driver = cluster("c", "a", "c")
    driver.create(assignments={0: (1, 2, 3)}, overrides={**PINNED, "min.insync.replicas": "2"})
    driver.want_isr(1, 3)
    assert level(driver) == 0
    driver.fence(1)
    assert driver.partition().leader == 3
    come_back(driver, 1)
    driver.want_isr(3, 1)
    driver.want_isr(3, 1, 2)
    assert level(driver) == 1
    assert driver.partition().leader == 2


def test_of_those_that_are_eligible_without_being_in_sync_the_best_placed_leads() -> None:
    driver = cluster("c", "b", "a")
    driver.create(assignments={0: (1, 2, 3)}, overrides={**PINNED, "min.insync.replicas": "3"})
    for node_id in (2, 3, 1):
        driver.fence(node_id)
    assert (driver.partition().leader, set(driver.partition().elr)) == (NO_LEADER, {1, 2, 3})
    come_back(driver, 3)
    assert driver.partition().leader == 3


def test_levelling_brings_leaders_back_to_their_racks_whatever_share_is_elsewhere() -> None:
    driver = cluster("a", "b", "c")
    driver.create(assignments={0: (3, 1, 2), 1: (2, 1, 3), 2: (3, 2, 1)}, overrides=PINNED)
    driver.create("free", assignments={0: (3, 1, 2)})
    assert [driver.partition(index).leader for index in range(3)] == [3, 2, 3], "as they were assigned by hand"
    assert level(driver) == 2
    assert [driver.partition(index).leader for index in range(3)] == [1, 2, 2]
    assert driver.partition(name="free").leader == 3
    assert level(driver, 0) == 0, "it is settled"


def test_the_first_of_ordered_racks_takes_over_from_the_second() -> None:
    driver = cluster("a", "b", "c")
    driver.create(assignments={0: (1, 2, 3)}, overrides=ORDERED)
    assert level(driver) == 1
    assert driver.partition().leader == 2
    driver.fence(2)
    assert driver.partition().leader == 1
    come_back(driver, 2)
    driver.want_isr(1, 3, 2)
    assert level(driver) == 1
    assert driver.partition().leader == 2


def test_the_second_choice_takes_over_from_a_leader_in_a_worse_rack() -> None:
    driver = cluster("c", "a", "a")
    driver.create(assignments={0: (1, 2, 3)}, overrides=PINNED)
    driver.want_isr(1, 3)
    assert level(driver) == 1
    assert driver.partition().leader == 3


@pytest.mark.parametrize("overrides", [{}, PINNED])
def test_among_equals_only_the_first_choice_takes_over(overrides: dict[str, str]) -> None:
    driver = cluster("a", "a", "a")
    driver.create(assignments={0: (1, 2, 3)}, overrides={**overrides, "min.insync.replicas": "1"})
    driver.fence(1)
    driver.fence(2)
    come_back(driver, 2)
    driver.want_isr(3, 2)
    assert level(driver, 0) == 0
    assert driver.partition().leader == 3
    come_back(driver, 1)
    driver.want_isr(3, 2, 1)
    assert level(driver, 0) == 1
    assert driver.partition().leader == 1


def test_who_asks_for_the_preferred_leader_gets_that_of_the_preferred_racks() -> None:
    driver = cluster("c", "a", "b")
    driver.create(assignments={0: (1, 2, 3)}, overrides=PINNED)
    assert driver.elect(elections.PREFERRED).leader == 2
    with pytest.raises(BrokerError) as error:
        driver.elect(elections.PREFERRED)
    assert error.value.code is ErrorCode.ELECTION_NOT_NEEDED


def test_leaders_move_as_soon_as_other_racks_are_preferred() -> None:
    driver = cluster("c", "a", "b")
    driver.create(assignments={0: (1, 2, 3)})
    driver.configure("t", fluvial_leaders_preference="racks:b")
    assert driver.partition().leader == 3
    driver.configure("t", fluvial_leaders_preference="none")
    assert driver.partition().leader == 1
    driver.configure("t", fluvial_leaders_preference="racks:nowhere")
    assert driver.partition().leader == 1


def test_the_default_of_all_brokers_holds_where_a_topic_says_nothing() -> None:
    driver = cluster("c", "a", "b")
    driver.image.static = CONFIG
    driver.create(assignments={0: (1, 2, 3)})
    driver.create("own", assignments={0: (1, 2, 3)}, overrides={LEADERS_PREFERENCE: "none"})
    before, after = driver.image.draft(), driver.image.draft()
    setting = Alteration(LEADERS_PREFERENCE, Operation.SET, "racks:b")
    record = controller.configure_brokers(driver.image, None, [setting], CONFIG)
    after.replay(record)
    driver.commit([record, *elections.reconfigured(before, after)])
    assert (driver.partition().leader, driver.partition(name="own").leader) == (3, 1)


def test_it_cannot_be_set_while_a_node_may_not_know_it() -> None:
    driver = ClusterDriver()
    driver.commit([FeatureLevelSet(feature=METADATA_VERSION, level=26)])
    driver.start(1, rack="a", features=told_of(SUPPORTED))
    driver.create()
    setting = [Alteration(LEADERS_PREFERENCE, Operation.SET, "racks:a")]
    for refused in (
        lambda: driver.create("other", overrides=PINNED),
        lambda: controller.configure_topic(driver.image, driver.image.topics["t"], setting),
        lambda: controller.configure_brokers(driver.image, None, setting, CONFIG),
    ):
        with pytest.raises(BrokerError, match=r"from metadata.version 27 on and the cluster is at 26") as error:
            refused()
        assert error.value.code is ErrorCode.INVALID_CONFIG
