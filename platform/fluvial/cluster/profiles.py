"""Bundles of settings for a topic, each a stand on consistency against availability when copies are lost."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How many replicas a topic has, and the settings that go with that."""

    replication_factor: int
    settings: Mapping[str, str]
    means: str


PROFILES: Mapping[str, Profile] = {
    "durable": Profile(
        replication_factor=3,
        settings={
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "false",
            "fluvial.durability": "fsync-quorum",
        },
        means=(
            "records acknowledged with acks=all survive any single failure; "
            "writes are rejected while two replicas are missing"
        ),
    ),
    "available": Profile(
        replication_factor=3,
        settings={
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": "true",
            "fluvial.durability": "fsync-leader",
        },
        means="continues with any remaining replica; records it lacks are lost and reported in the events",
    ),
}
