"""
Feature levels: what every node of a cluster understands, so that none writes what another cannot read.

A release supports a range of levels of each feature, and the cluster is at one level of it, which all its nodes must
support (KIP-584, KIP-778, KIP-1022). `metadata.version` is the format of the metadata log itself. Its levels have
Kafka's numbers and names, so that Kafka's tools can show them; what a level brings here stands in docs/cluster.md.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from log_broker.config.contracts import PRODUCERS
from log_broker.config.leaders import LEADERS_PREFERENCE
from log_broker.config.policy import REPLICATION_FACTOR_MIN

METADATA_VERSION = "metadata.version"
GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"

# The names of metadata levels, the oldest first. Each wrote records that a node at an earlier one cannot read.
METADATA_LEVELS: Mapping[int, str] = {25: "4.0-IV3", 26: "4.1-IV0", 27: "4.1-IV1", 28: "4.2-IV0"}
LEVELS_KEPT_FROM = 26  # the log has FeatureLevelSet and the ranges of brokers
USERS_FROM = 28  # and ACLs and users

# Settings that an older release does not know, whose name alone would stop it: the level from which they can be set.
SETTINGS_FROM: Mapping[str, int] = {LEADERS_PREFERENCE: 27, REPLICATION_FACTOR_MIN: 27, PRODUCERS: 28}


LISTENERS_FROM = 28  # a registration names all listeners of its broker


class LevelRange(NamedTuple):
    """The levels of one feature that a node supports, both ends included; 0 to 0 is a node that does not know it."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest}-{self.highest}"


Ranges = Mapping[str, LevelRange]
ToldRanges = tuple[tuple[str, int, int], ...]  # (feature, lowest, highest), as requests and records have them

UNKNOWN_FEATURE = LevelRange(0, 0)

# Groups of the new protocol (KIP-848) are group.version 1. At transaction.version 2 a producer announces no partitions
# and gets a new epoch with each transaction (KIP-890). Voters by name and directory (KIP-853) and eligible leader
# replicas (KIP-966) have been there from the beginning and cannot be given up.
SUPPORTED: Ranges = {
    METADATA_VERSION: LevelRange(min(METADATA_LEVELS), max(METADATA_LEVELS)),
    "kraft.version": LevelRange(1, 1),
    TRANSACTION_VERSION: LevelRange(0, 2),
    GROUP_VERSION: LevelRange(0, 1),
    "eligible.leader.replicas.version": LevelRange(1, 1),
}

# The levels of a cluster whose log tells none: what the releases did that wrote no levels.
LEVELS_UNTOLD: Mapping[str, int] = {
    METADATA_VERSION: 25,
    "kraft.version": 1,
    TRANSACTION_VERSION: 2,
    GROUP_VERSION: 1,
    "eligible.leader.replicas.version": 1,
}
_RANGES_UNTOLD: Ranges = {**SUPPORTED, METADATA_VERSION: LevelRange(25, 25)}


def ranges_of(told: Iterable[tuple[str, int, int]]) -> Ranges:
    """Return what a node supports from what it tells of itself; one that tells nothing is of before the levels."""
    ranges = {name: LevelRange(lowest, highest) for name, lowest, highest in told}
    return ranges if METADATA_VERSION in ranges else _RANGES_UNTOLD


def told_of(ranges: Ranges) -> ToldRanges:
    """Return ranges as a registration tells them."""
    return tuple((name, *levels) for name, levels in sorted(ranges.items()))


def misfit(node: str, ranges: Ranges, levels: Mapping[str, int]) -> str | None:
    """Say why a node cannot be of a cluster that is at these levels, and what to do; None when it can."""
    for name, level in levels.items():
        supported = ranges.get(name, UNKNOWN_FEATURE)
        if level not in supported:
            which = "a newer" if level > supported.highest else "an older"
            return (
                f"{node} supports levels {supported} of {name} and the cluster is at level {level}: start it with "
                f"{which} release, one that supports that level (`fluvial cluster features` shows the cluster's)"
            )
    return None
