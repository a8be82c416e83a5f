"""The least replication factor: which topics and reassignments the controller refuses, and which it does not."""

from dataclasses import replace

import pytest
from cluster_driver import CONFIG, ClusterDriver

from log_broker.config.broker import BrokerConfig
from log_broker.config.policy import REPLICATION_FACTOR_MIN
from log_broker.core.cluster import controller
from log_broker.core.cluster.controller import Alteration, Operation
from log_broker.core.cluster.features import METADATA_VERSION
from log_broker.core.cluster.reassignments import reassign
from log_broker.core.cluster.records import FeatureLevelSet
from log_broker.errors import BrokerError, ErrorCode

LEAST = 3


def limited(*brokers: int, **settings: int) -> ClusterDriver:
    return ClusterDriver(*brokers, config=replace(CONFIG, fluvial_replication_factor_min=LEAST, **settings))


def refusal(driver: ClusterDriver, **fields: object) -> str:
    with pytest.raises(BrokerError) as refused:
        driver.create(**fields)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    return str(refused.value)


def test_without_a_limit_one_broker_is_enough() -> None:
    assert ClusterDriver(1).create(replication_factor=1).partitions[0].replicas == (1,)
    with pytest.raises(BrokerError, match=r"it is outside 1 … "):
        CONFIG.with_settings({REPLICATION_FACTOR_MIN: "0"})


def test_a_topic_with_fewer_replicas_is_refused_with_the_limit_and_the_way_out() -> None:
    driver = limited(1, 2, 3)
    said = (
        "and fluvial.replication.factor.min is 3: ask for 3 replicas or more, or lower fluvial.replication.factor.min"
    )
    assert said in refusal(driver, replication_factor=1)
    assert said in refusal(driver, replication_factor=2)
    assert said in refusal(driver, assignments={0: (1, 2), 1: (2, 3)})
    assert "by default.replication.factor, would have a replication factor of 1" in refusal(driver)
    assert not driver.image.topics
    assert driver.create("a", replication_factor=3).partitions[0].factor == 3
    assert driver.create("b", assignments={0: (3, 2, 1)}).partitions[0].factor == 3


def test_a_default_that_is_large_enough_is_taken() -> None:
    assert limited(1, 2, 3, default_replication_factor=3).create().partitions[0].factor == 3


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__fluvial_events", "t.quarantine"])
def test_the_brokers_own_topics_get_what_the_limit_asks_for_or_what_there_is(name: str) -> None:
    for brokers, factor in (((1,), 1), ((1, 2), 2), ((1, 2, 3, 4), LEAST)):
        assert limited(*brokers).create(name, replication_factor=1).partitions[0].factor == factor
    assert limited(1, 2, 3, 4).create(name, replication_factor=4).partitions[0].factor == 4
    assert ClusterDriver(1, 2).create(name, replication_factor=1).partitions[0].factor == 1


def test_a_reassignment_does_not_lower_the_factor_below_the_limit() -> None:
    driver = ClusterDriver(1, 2, 3, 4)
    driver.create(assignments={0: (1, 2, 3, 4)})
    with pytest.raises(BrokerError, match=r"t-0 would have a replication factor of 2.*ask for 3 replicas") as refused:
        reassign(driver.image, "t", 0, (1, 2), least_factor=LEAST)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert reassign(driver.image, "t", 0, (1, 2, 4), least_factor=LEAST) is not None


def test_a_topic_from_before_the_limit_moves_grows_and_is_raised() -> None:
    driver = ClusterDriver(1, 2, 3)
    driver.create(assignments={0: (1, 2)})
    driver.commit([reassign(driver.image, "t", 0, (2, 3), least_factor=LEAST)])
    assert driver.want_isr(1, 2, 3).replicas == (2, 3)
    with pytest.raises(BrokerError, match=r"t-0 would have a replication factor of 1"):
        reassign(driver.image, "t", 0, (2,), least_factor=LEAST)
    driver.commit([reassign(driver.image, "t", 0, (1, 2, 3), least_factor=LEAST)])
    # Its move began from fewer, and can be given up.
    driver.commit([reassign(driver.image, "t", 0, None, least_factor=LEAST)])
    assert driver.partition().replicas == (2, 3)
    driver.add_partitions("t", 2)
    assert driver.partition(1).factor == 2


def test_partitions_cannot_be_added_with_fewer_replicas_than_the_topic_has() -> None:
    driver = limited(1, 2, 3)
    driver.create(assignments={0: (1, 2, 3)})
    with pytest.raises(BrokerError, match=r"gives one partition 2 replicas and another one 3") as refused:
        driver.add_partitions("t", 2, [(1, 2)])
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_it_is_set_for_all_brokers_while_they_run_once_all_know_it() -> None:
    driver = ClusterDriver(1)
    static: BrokerConfig = driver.config
    alteration = [Alteration(REPLICATION_FACTOR_MIN, Operation.SET, "3")]
    with pytest.raises(BrokerError, match=r"from metadata.version 27 on and the cluster is at 25"):
        controller.configure_brokers(driver.image, None, alteration, static)
    driver.commit([FeatureLevelSet(feature=METADATA_VERSION, level=27)])
    driver.commit([controller.configure_brokers(driver.image, None, alteration, static)])
    assert driver.image.effective_config(static).fluvial_replication_factor_min == LEAST
