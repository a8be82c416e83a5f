"""Feature levels, as the active controller decides on them."""

import pytest
from cluster_driver import ClusterDriver

from log_broker.core.cluster.feature_updates import (
    Answered,
    FeatureUpdate,
    Nodes,
    UpgradeType,
    first_levels,
    unknown_nodes,
    update_features,
)
from log_broker.core.cluster.features import (
    LEVELS_UNTOLD,
    METADATA_VERSION,
    SUPPORTED,
    LevelRange,
    Ranges,
    misfit,
    ranges_of,
    told_of,
)
from log_broker.core.cluster.records import BrokerRegistered, FeatureLevelSet, encode
from log_broker.core.cluster.snapshot import decode_image, encode_image
from log_broker.errors import BrokerError, ErrorCode

NEWEST = SUPPORTED[METADATA_VERSION].highest
OLD: Ranges = {**SUPPORTED, METADATA_VERSION: LevelRange(25, 25)}


def cluster(*features: Ranges, levels: Ranges = SUPPORTED) -> ClusterDriver:
    """Brokers from 1 on; the controller is broker 1, and the cluster was begun by a release that supports `levels`."""
    driver = ClusterDriver()
    driver.commit(first_levels(levels))
    for node_id, ranges in enumerate(features, 1):
        driver.register(node_id, directory=f"d{node_id}", features=told_of(ranges))
    return driver


def answers(driver: ClusterDriver, *features: Ranges) -> Nodes:
    """What brokers answer when they are asked, from 1 on."""
    brokers = driver.image.brokers
    known = {number: Answered(ranges, brokers[number].incarnation) for number, ranges in enumerate(features, 1)}
    return Nodes(1, (1,), known)


def refused(driver: ClusterDriver, nodes: Nodes, feature: str, level: int, kind: int = UpgradeType.UPGRADE) -> str:
    with pytest.raises(BrokerError) as error:
        update_features(driver.image, [FeatureUpdate(feature, level, kind)], nodes)
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION
    start = f"Invalid update version {level} for feature {feature}. "
    assert str(error.value).startswith(start)
    return str(error.value).removeprefix(start)


def test_a_new_cluster_is_at_the_newest_levels_and_keeps_what_brokers_support() -> None:
    driver = cluster(SUPPORTED)
    assert driver.image.levels == {name: levels.highest for name, levels in SUPPORTED.items()}
    assert ranges_of(driver.image.brokers[1].features or ()) == SUPPORTED


def test_a_log_without_feature_levels_is_at_the_lowest() -> None:
    driver = cluster(SUPPORTED, levels=OLD)
    assert driver.image.levels == LEVELS_UNTOLD
    assert driver.image.brokers[1].features is None
    assert b"features" not in encode_image(driver.image)
    assert b"features" not in encode(BrokerRegistered(node_id=1, host="h", port=1, incarnation="a"))


def test_a_level_is_raised_once_all_nodes_support_it() -> None:
    driver = cluster(OLD, OLD, levels=OLD)
    raise_it = [FeatureUpdate(METADATA_VERSION, 26)]
    assert refused(driver, answers(driver, SUPPORTED, OLD), *raise_it[0][:2]) == "Broker 2 only supports versions 25"
    driver.commit(update_features(driver.image, raise_it, answers(driver, SUPPORTED, SUPPORTED)))
    assert driver.image.levels[METADATA_VERSION] == 26
    assert driver.image.levels_version == driver.image.version
    # From now on what they support stands in the log, and a snapshot keeps both.
    driver.register(2, "second", directory="d2", features=told_of(SUPPORTED))
    assert unknown_nodes(driver.image, [1, 2, 3]) == [1, 3]
    assert decode_image(encode_image(driver.image), driver.config) == driver.image


def test_who_is_not_known_to_support_a_level_keeps_it_from_being_raised() -> None:
    driver = cluster(SUPPORTED, SUPPORTED, levels=OLD)
    silent = answers(driver, SUPPORTED)
    assert "Broker 2 does not say what it supports: start it" in refused(driver, silent, METADATA_VERSION, 26)
    asked = answers(driver, SUPPORTED, SUPPORTED)
    driver.register(2, "another process", directory="d2", features=told_of(OLD))
    assert "Broker 2 does not say" in refused(driver, asked, METADATA_VERSION, 26)
    with_voter = Nodes(1, (1, 7), {**answers(driver, SUPPORTED, SUPPORTED).answered, 7: Answered(OLD)})
    assert refused(driver, with_voter, METADATA_VERSION, 26) == "Controller 7 only supports versions 25"


@pytest.mark.parametrize(
    ("feature", "level", "kind", "why"),
    [
        (METADATA_VERSION, 1, UpgradeType.UPGRADE, f"Local controller 1 only supports versions 25-{NEWEST}"),
        (METADATA_VERSION, 99, UpgradeType.UPGRADE, f"Local controller 1 only supports versions 25-{NEWEST}"),
        (METADATA_VERSION, -1, UpgradeType.SAFE_DOWNGRADE, "A feature version cannot be less than 0."),
        (METADATA_VERSION, 25, UpgradeType.UPGRADE, "Can't downgrade the version of this feature without setting the"),
        (METADATA_VERSION, 25, UpgradeType.SAFE_DOWNGRADE, "Refusing to perform the requested downgrade because"),
        (METADATA_VERSION, 25, UpgradeType.UNSAFE_DOWNGRADE, "Unsafe metadata downgrade is not supported"),
        ("group.version", 1, 0, "The controller does not support the given upgrade type."),
        ("group.version", 2, UpgradeType.UPGRADE, "Local controller 1 only supports versions 0-1"),
        ("share.version", 1, UpgradeType.UPGRADE, "Local controller 1 does not support this feature."),
    ],
)
def test_a_level_that_cannot_be_is_refused_in_kafkas_words(feature: str, level: int, kind: int, why: str) -> None:
    driver = cluster(SUPPORTED, SUPPORTED)
    assert refused(driver, answers(driver, SUPPORTED), feature, level, kind).startswith(why)


def test_a_level_may_be_lowered_where_nothing_depends_on_it_and_is_raised_again() -> None:
    driver = cluster(SUPPORTED)
    nodes = answers(driver, SUPPORTED)
    lower = FeatureUpdate("group.version", 0, UpgradeType.SAFE_DOWNGRADE)
    assert update_features(driver.image, [lower], nodes) == [FeatureLevelSet(feature="group.version", level=0)]
    driver.commit(update_features(driver.image, [lower], nodes))
    assert update_features(driver.image, [lower], nodes) == [], "it is there already"
    up = FeatureUpdate("group.version", 1, UpgradeType.SAFE_DOWNGRADE)
    assert refused(driver, nodes, *up) == "Can't downgrade to a newer version."
    driver.commit(update_features(driver.image, [up._replace(kind=UpgradeType.UPGRADE)], nodes))
    assert driver.image.levels["group.version"] == 1


def test_levels_are_kept_by_a_log_that_has_a_place_for_them() -> None:
    driver = cluster(SUPPORTED, levels=OLD)
    nodes = answers(driver, SUPPORTED)
    lower = FeatureUpdate("group.version", 0, UpgradeType.SAFE_DOWNGRADE)
    assert "from metadata.version 26 on: raise it" in refused(driver, nodes, *lower)
    both = [FeatureUpdate(METADATA_VERSION, 26), lower]
    assert [each.level for each in update_features(driver.image, both, nodes)] == [26, 0]


def test_a_broker_that_does_not_support_the_levels_is_refused() -> None:
    driver = cluster(SUPPORTED)
    for features in (told_of(OLD), ()):
        with pytest.raises(BrokerError) as error:
            driver.register(2, features=features)
        assert error.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert str(error.value) == (
            f"node 2 supports levels 25 of metadata.version and the cluster is at level {NEWEST}: start it with a newer"
            " release, one that supports that level (`fluvial cluster features` shows the cluster's)"
        )
    assert 2 not in driver.image.brokers
    older = misfit("node 3", {**SUPPORTED, METADATA_VERSION: LevelRange(30, 31)}, driver.image.levels)
    assert older is not None
    assert "start it with an older release" in older
