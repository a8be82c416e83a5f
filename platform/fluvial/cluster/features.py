"""Feature levels of a cluster: what each broker supports, what the cluster is at, and other levels for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from fluvial.cluster.wire import ClusterLink
from fluvial.errors import FluvialError
from log_broker.core.cluster.features import METADATA_LEVELS, METADATA_VERSION
from log_broker.wire.apis import ApiKey

TIMEOUT_MS = 10_000
_CLIENT = {"client_software_name": "fluvial", "client_software_version": "1"}
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeaturesError(FluvialError):
    """There is no such feature or release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature: its level, 0 where the cluster does not use it, and what each broker supports, by its id."""

    name: str
    level: int
    supported: Mapping[int, tuple[int, int]]

    @property
    def highest(self) -> int:
        """The highest level that all brokers support."""
        return min((highest for _, highest in self.supported.values()), default=0)

    @property
    def lowest(self) -> int:
        """The lowest level that all brokers support."""
        return max((lowest for lowest, _ in self.supported.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """All of them; `epoch` grows with each change of a level and is -1 where the cluster does not tell."""

    epoch: int
    by_name: Mapping[str, Feature]


def features_of(cluster: ClusterLink) -> Features:
    """Ask every broker that is up; raises WireError or RefusedError."""
    asked = {"topics": (), "allow_auto_topic_creation": False}
    answer = cluster.ask(
        ApiKey.METADATA,
        {**asked, "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False},
    )
    addresses = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
    cluster.learn(addresses.values())
    epoch = -1
    levels: dict[str, int] = {}
    supported: dict[str, dict[int, tuple[int, int]]] = {}
    for node_id, address in sorted(addresses.items()):
        response = cluster.ask_at(address, ApiKey.API_VERSIONS, _CLIENT)
        for each in response.supported_features:
            supported.setdefault(each.name, {})[node_id] = (each.min_version, each.max_version)
        # A broker may be behind: the newest word counts.
        if response.finalized_features_epoch >= epoch:
            epoch = response.finalized_features_epoch
            levels = {each.name: each.max_version_level for each in response.finalized_features}
    names = sorted({*levels, *supported})
    return Features(
        epoch=epoch,
        by_name={
            # Who does not name a feature does not know it.
            name: Feature(
                name=name,
                level=levels.get(name, 0),
                supported={node_id: supported.get(name, {}).get(node_id, (0, 0)) for node_id in sorted(addresses)},
            )
            for name in names
        },
    )


def update_features(cluster: ClusterLink, levels: Mapping[str, int], kind: int, *, dry_run: bool = False) -> None:
    """Have the controller set levels, all or none; raises RefusedError with its reason, or WireError."""
    updates = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UPGRADE}
        for name, level in levels.items()
    ]
    cluster.settled(
        "set the feature levels",
        ApiKey.UPDATE_FEATURES,
        {"timeout": TIMEOUT_MS, "feature_updates": updates, "validate_only": dry_run},
    )


def level_of_release(name: str) -> int:
    """Return the metadata level of a release by Kafka's name for it, `4.1` or `4.1-IV0`; raises FeaturesError."""
    found = [level for level, release in METADATA_LEVELS.items() if release == name or release.startswith(f"{name}-")]
    if not found:
        known = ", ".join(METADATA_LEVELS.values())
        raise FeaturesError(f"there is no {METADATA_VERSION} of a release {name!r}; those that there are: {known}")
    return max(found)


def newest_metadata_level(features: Features) -> int | None:
    """Return the highest metadata level that all brokers support, None where it is reached; raises FeaturesError."""
    feature = features.by_name.get(METADATA_VERSION)
    if feature is None:
        raise FeaturesError(f"the cluster does not report {METADATA_VERSION}; name a level with --feature")
    return feature.highest if feature.level < feature.highest else None
