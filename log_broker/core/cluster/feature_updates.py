"""
What the controller decides about feature levels: those a cluster begins with, and UpdateFeatures (KIP-584, KIP-778).

A level is raised when all nodes support it, and only then, for what is written at it cannot be read by others. For the
same reason `metadata.version` is never lowered: each level of it has written what the one before cannot read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from log_broker.core.cluster.features import (
    LEVELS_KEPT_FROM,
    METADATA_VERSION,
    UNKNOWN_FEATURE,
    LevelRange,
    Ranges,
    ranges_of,
)
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import FeatureLevelSet
from log_broker.errors import BrokerError, ErrorCode


class UpgradeType(IntEnum):
    """Which way a level may go, as UpdateFeatures has it."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that a feature shall have; `kind` is an UpgradeType, or what a client took for one."""

    feature: str
    level: int
    kind: int = UpgradeType.UPGRADE


class Answered(NamedTuple):
    """What a node that was asked supports; `incarnation` is the process that was registered then, empty for none."""

    ranges: Ranges
    incarnation: str = ""


class Nodes(NamedTuple):
    """Whose word counts beside that of the registered brokers, and what those answered that the log does not know."""

    controller_id: int
    voters: Sequence[int]
    answered: Mapping[int, Answered]


def first_levels(supported: Ranges) -> list[FeatureLevelSet]:
    """Return the levels with which a new cluster begins: the newest ones of its first controller."""
    if supported[METADATA_VERSION].highest < LEVELS_KEPT_FROM:
        return []
    return [FeatureLevelSet(feature=name, level=levels.highest) for name, levels in supported.items()]


def unknown_nodes(image: ClusterImage, voters: Iterable[int]) -> list[int]:
    """Return the nodes that have to be asked what they support, since the log does not tell it."""
    silent = {node_id for node_id, broker in image.brokers.items() if broker.features is None}
    return sorted(silent | (set(voters) - image.brokers.keys()))


def update_features(image: ClusterImage, updates: Sequence[FeatureUpdate], nodes: Nodes) -> list[FeatureLevelSet]:
    """
    Decide on other levels, all of them or none.

    Raises BrokerError(INVALID_UPDATE_VERSION) for the first one that cannot be, in Kafka's words as far as it has them.
    """
    then = {**image.levels, **{update.feature: update.level for update in updates}}
    records = []
    for update in updates:
        _check(image, update, nodes)
        if update.level == image.levels.get(update.feature, 0):
            continue
        if then[METADATA_VERSION] < LEVELS_KEPT_FROM:
            raise _refusal(update, f"The cluster keeps levels from {METADATA_VERSION} {LEVELS_KEPT_FROM} on: raise it.")
        records.append(FeatureLevelSet(feature=update.feature, level=update.level))
    return records


def _check(image: ClusterImage, update: FeatureUpdate, nodes: Nodes) -> None:
    if update.kind not in list(UpgradeType):
        raise _refusal(update, "The controller does not support the given upgrade type.")
    if update.level < 0:
        raise _refusal(update, "A feature version cannot be less than 0.")
    for node, supported in _supported(image, update.feature, nodes):
        if supported is None:
            raise _refusal(
                update, f"{node} does not say what it supports: start it, or strike it off if it will not return."
            )
        if update.level not in supported:
            knows = (
                "does not support this feature." if supported.highest == 0 else f"only supports versions {supported}"
            )
            raise _refusal(update, f"{node} {knows}")
    now = image.levels.get(update.feature, 0)
    if update.level > now and update.kind != UpgradeType.UPGRADE:
        raise _refusal(update, "Can't downgrade to a newer version.")
    if update.level >= now:
        return
    if update.kind == UpgradeType.UPGRADE:
        raise _refusal(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
            " downgrade.",
        )
    if update.feature == METADATA_VERSION:
        raise _refusal(
            update,
            "Unsafe metadata downgrade is not supported in this version."
            if update.kind == UpgradeType.UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information.",
        )


def _supported(image: ClusterImage, feature: str, nodes: Nodes) -> Iterator[tuple[str, LevelRange | None]]:
    """Yield each node with what it supports of a feature, None where nobody knows."""
    yield f"Local controller {nodes.controller_id}", _range_of(image, nodes.controller_id, feature, nodes)
    for node_id in sorted({*image.brokers, *nodes.voters} - {nodes.controller_id}):
        what = "Broker" if node_id in image.brokers else "Controller"
        yield f"{what} {node_id}", _range_of(image, node_id, feature, nodes)


def _range_of(image: ClusterImage, node_id: int, feature: str, nodes: Nodes) -> LevelRange | None:
    broker = image.brokers.get(node_id)
    if broker is not None and broker.features is not None:
        return ranges_of(broker.features).get(feature, UNKNOWN_FEATURE)
    answered = nodes.answered.get(node_id)
    # Another process may have come up under the id since the answer.
    if answered is None or (broker is not None and answered.incarnation != broker.incarnation):
        return None
    return answered.ranges.get(feature, UNKNOWN_FEATURE)


def _refusal(update: FeatureUpdate, why: str) -> BrokerError:
    return BrokerError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.feature}. {why}",
    )
