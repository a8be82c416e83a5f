"""
Who of a partition's replicas should lead it, best first: those in the racks that the topic prefers, as Redpanda's
leader pinning has it, and among them the order of the replicas, whose first is Kafka's preferred leader.

It says whom to choose of those that may be chosen, never who may: that is for the ISR and the ELR (`partition_change`).
"""

from collections.abc import Iterable

from log_broker.config.leaders import LeadersPreference
from log_broker.core.cluster.image import ClusterImage, TopicImage


def by_choice(image: ClusterImage, topic: TopicImage, replicas: Iterable[int]) -> list[int]:
    """Return replicas in the order in which they should lead."""
    return sorted(replicas, key=lambda node_id: rank(image, topic.config.fluvial_leaders_preference, node_id))


def first_choice(image: ClusterImage, topic: TopicImage, index: int) -> int:
    """Return who should lead a partition if all its replicas could."""
    return by_choice(image, topic, topic.partitions[index].replicas)[0]


def rank_of_leader(image: ClusterImage, topic: TopicImage, index: int) -> int:
    """Return how far the rack of a partition's leader is from the preferred ones."""
    return rank(image, topic.config.fluvial_leaders_preference, topic.partitions[index].leader)


def rank(image: ClusterImage, preference: LeadersPreference, node_id: int) -> int:
    """Return how far a broker's rack is from the preferred ones, 0 for the best."""
    broker = image.brokers.get(node_id)
    return preference.rank(None if broker is None else broker.rack)
