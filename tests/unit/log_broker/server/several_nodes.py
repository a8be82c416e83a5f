"""Several nodes in one event loop that make a cluster, and what tests ask of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

from log_broker.config import BrokerConfig
from log_broker.core.controller import CreateTopic
from log_broker.server.node import Node

SECONDS_MAX = 30.0


@asynccontextmanager
async def cluster(data_dir: Path, count: int = 3) -> AsyncIterator[list[Node]]:
    """Run nodes that know each other; the first is the controller."""
    async with AsyncExitStack() as stack:
        started: list[Node] = []
        for number in range(count):
            controller = f"127.0.0.1:{started[0].port}" if started else None
            node = Node(BrokerConfig(data_dir=data_dir / f"n{number}", port=0, node_id=number, controller=controller))
            await node.start()
            stack.push_async_callback(node.stop)
            started.append(node)
        await eventually(lambda: all(len(node.cluster.alive_brokers()) == count for node in started))
        yield started


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what tells nobody when it comes true."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


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
    await (first.ensure_offsets_topic() if group else first.ensure_transactions_topic())
    place_of = first.group_partition if group else first.transaction_partition
    topic = "__consumer_offsets" if group else "__transaction_state"
    names = (f"{'g' if group else 'x'}{number}" for number in range(10_000))
    led = {index for image, index, _ in first.cluster.led_by(node_id) if image.name == topic}
    name = next(name for name in names if place_of(name) in led)
    check = nodes[node_id].groups.check if group else nodes[node_id].transactions.check
    await eventually(lambda: not check(name))
    return name
