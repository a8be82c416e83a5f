"""Several nodes in one event loop that make a cluster, and what tests ask of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from node_cluster import cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.server.coordinators.internal_topics import (
    ensure_offsets_topic,
    ensure_transactions_topic,
    group_partition,
    transaction_partition,
)
from log_broker.server.node import Node


@asynccontextmanager
async def cluster(data_dir: Path, count: int = 3) -> AsyncIterator[list[Node]]:
    """Run nodes that know each other, in the order of their ids."""
    async with cluster_of(data_dir, count) as running:
        yield [running.nodes[node_id] for node_id in range(count)]


async def topic_of(nodes: list[Node], name: str, leaders: list[int]) -> None:
    """Make a topic with a partition on each of these nodes, by their ids, and wait until all know of it."""
    assignments = {partition: (leader,) for partition, leader in enumerate(leaders)}
    await nodes[0].ensure_topic(CreateTopic(name=name, topic_id=uuid4().hex, assignments=assignments))
    await eventually(lambda: all(name in node.cluster.topics for node in nodes))
    for partition, leader in enumerate(leaders):
        await eventually(lambda p=partition, n=nodes[leader]: n.logs.get(name, p) is not None)


async def coordinated_by(nodes: list[Node], node_id: int, *, group: bool = False) -> str:
    """Return a transactional id, or the name of a group, that a node coordinates and is ready for."""
    first = nodes[0]
    await (ensure_offsets_topic(first) if group else ensure_transactions_topic(first))
    partition_of = group_partition if group else transaction_partition
    topic = "__consumer_offsets" if group else "__transaction_state"
    names = (f"{'g' if group else 'x'}{number}" for number in range(10_000))
    led = {index for image, index, _ in first.cluster.led_by(node_id) if image.name == topic}
    name = next(name for name in names if partition_of(first.cluster, name) in led)
    check = nodes[node_id].groups.check if group else nodes[node_id].transactions.check
    await eventually(lambda: not check(name))
    return name
