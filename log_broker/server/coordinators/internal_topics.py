"""The topics that groups and transactions are kept in: made on first use, and which partition a name belongs to."""

import sys
from array import array
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import accumulate, repeat
from operator import mul
from typing import Protocol
from uuid import uuid4

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterImage
from log_broker.server.partitions.ports import EnsuresTopics
from log_broker.server.process.ports import Cluster
from log_broker.wire.reading import STRING_BYTES_MAX

OFFSETS_OVERRIDES = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20), "compression.type": "producer"}
TRANSACTIONS_OVERRIDES = {**OFFSETS_OVERRIDES, "compression.type": "uncompressed"}
HASHES_KEPT = 10_000


class TopicHost(Cluster, EnsuresTopics, Protocol):
    """What making these topics asks of the node."""


async def ensure_offsets_topic(node: TopicHost) -> None:
    """Make `__consumer_offsets` if it is not there; raises BrokerError."""
    await _ensure(node, OFFSETS_TOPIC, node.config.offsets_topic_num_partitions, OFFSETS_OVERRIDES)


async def ensure_transactions_topic(node: TopicHost) -> None:
    """Make `__transaction_state` if it is not there; raises BrokerError."""
    await _ensure(node, TRANSACTIONS_TOPIC, node.config.transaction_state_log_num_partitions, TRANSACTIONS_OVERRIDES)


async def _ensure(node: TopicHost, name: str, partitions: int, overrides: Mapping[str, str]) -> None:
    await node.ensure_topic(
        CreateTopic(
            name=name,
            topic_id=uuid4().hex,
            partitions=partitions,
            replication_factor=node.static_config.replication_factor,
            overrides=dict(overrides),
        )
    )


def group_partition(cluster: ClusterImage, group_id: str) -> int | None:
    """Return the partition of `__consumer_offsets` that a group belongs to, None before that topic exists."""
    return _partition_in(cluster, OFFSETS_TOPIC, group_id)


def transaction_partition(cluster: ClusterImage, transactional_id: str) -> int | None:
    """Return the partition of `__transaction_state` that an id belongs to, None before that topic exists."""
    return _partition_in(cluster, TRANSACTIONS_TOPIC, transactional_id)


def _partition_in(cluster: ClusterImage, topic: str, name: str) -> int | None:
    image = cluster.topics.get(topic)
    return None if image is None else partition_of(name, len(image.partitions))


def partition_of(name: str, count: int) -> int:
    """Return which of `count` partitions a name belongs to, by Java's String.hashCode without its sign."""
    return _hash_of(name) % count


@lru_cache(HASHES_KEPT)
def _hash_of(name: str) -> int:
    units = array("H", name.encode(_UTF_16, "surrogatepass"))
    units.reverse()
    return int(sum(map(mul, units, _powers()))) & 0x7FFFFFFF


@cache
def _powers() -> tuple[int, ...]:
    """Return those of 31, as many as a name has characters at the most."""
    return tuple(accumulate(repeat(31, STRING_BYTES_MAX), lambda power, base: power * base & 0xFFFFFFFF, initial=1))


_UTF_16 = f"utf-16-{'le' if sys.byteorder == 'little' else 'be'}"
