"""Where the product puts the replicas of a large cluster, and how widely that spreads what a broker has."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.placement import place
from log_broker.core.cluster.records import BrokerRegistered, BrokerUnfenced, TopicCreated

Integers = npt.NDArray[np.int64]
PARTITIONS_A_TOPIC = 1_000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """
    A cluster: so many brokers, whose ids say nothing of the racks that they stand in, and so many partitions.

    `told` is whether brokers name their racks (`broker.rack`).
    """

    brokers: int = 1_000
    partitions: int = 100_000
    copies: int = 3
    racks: int = 25
    told: bool = True

    @cached_property
    def rack_of(self) -> Integers:
        """The rack of each broker."""
        return np.random.default_rng(0).permutation(self.brokers) % self.racks


class Layout:
    """The replicas of every partition; brokers and partitions are counted from 0."""

    def __init__(self, shape: Shape, replicas: Any) -> None:
        self.shape = shape
        self.replicas: Integers = np.array(replicas, dtype=np.int64).reshape(-1, shape.copies)

    @cached_property
    def held(self) -> list[Integers]:
        """The partitions that each broker has a replica of."""
        order = np.argsort(self.replicas, axis=None, kind="stable")
        bounds = np.searchsorted(self.replicas.ravel()[order], np.arange(self.shape.brokers + 1))
        partitions = order // self.shape.copies
        return [partitions[low:high] for low, high in pairwise(bounds)]

    def partners(self, broker: int) -> int:
        """How many other brokers share a partition with a broker: those that a lost one's copies are read from."""
        return len(np.unique(self.replicas[self.held[broker]])) - 1

    def copysets(self) -> int:
        """How many different sets of brokers hold a partition."""
        return len(np.unique(np.sort(self.replicas, axis=1), axis=0))


def brokers_up(shape: Shape) -> ClusterImage:
    """Return the image of a cluster whose brokers are up and that has no topic yet."""
    image = ClusterImage()
    for node_id in range(shape.brokers):
        rack = f"rack-{shape.rack_of[node_id]}" if shape.told else None
        image.replay(
            BrokerRegistered(node_id=node_id, host=f"node-{node_id}", port=9092, incarnation=str(node_id), rack=rack)
        )
        image.replay(BrokerUnfenced(node_id=node_id))
    return image


def add_topics(image: ClusterImage, shape: Shape) -> None:
    """Have the product place all partitions, topic after topic."""
    for first in range(0, shape.partitions, PARTITIONS_A_TOPIC):
        count = min(PARTITIONS_A_TOPIC, shape.partitions - first)
        replicas = place(image, count, shape.copies)
        image.replay(TopicCreated(name=f"topic-{first}", topic_id=UUID(int=first).hex, replicas=replicas))


def layout(shape: Shape) -> Layout:
    """Place all partitions of a cluster."""
    image = brokers_up(shape)
    add_topics(image, shape)
    return of_image(shape, image)


def of_image(shape: Shape, image: ClusterImage) -> Layout:
    return Layout(shape, [partition.replicas for topic in image.topics.values() for partition in topic.partitions])
