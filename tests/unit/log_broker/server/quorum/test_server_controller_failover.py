"""Brokers and controllers that stop or fall silent, among three real nodes: who leads then, and in which epoch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.core.cluster.checks import check_image
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import PartitionImage
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey

LEVELLED = {
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
}
QUICK_TO_FENCE = {**LEVELLED, "broker.session.timeout.ms": "3000"}


async def make_topic(cluster: NodeCluster, *first: int, **settings: str) -> None:
    """Make a topic with a partition on all three nodes for each that is to be its preferred leader."""
    overrides = {key.replace("_", "."): text for key, text in settings.items()}
    assignments = {index: (node_id, *({0, 1, 2} - {node_id})) for index, node_id in enumerate(first)}
    command = CreateTopic(name="t", topic_id=uuid4().hex, assignments=assignments, overrides=overrides)
    await cluster.controller.ensure_topic(command)
    await everywhere(cluster, lambda node: "t" in node.cluster.topics)


async def everywhere(cluster: NodeCluster, condition: Callable[[Node], bool]) -> None:
    await eventually(lambda: all(condition(node) for node in cluster.nodes.values()))


def partitions(node: Node) -> tuple[PartitionImage, ...]:
    return node.cluster.topics["t"].partitions


async def test_leaders_move_before_a_node_stops_and_return_with_it(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, LEVELLED) as cluster:
        controller = (await cluster.has_controller()).config.node_id
        gone = (controller + 1) % 3
        await make_topic(cluster, 0, 1, 2)
        await cluster.stop(gone)
        now = partitions(cluster.controller)
        assert all(each.leader not in {gone, -1} and gone not in each.isr for each in now)
        epochs = [each.leader_epoch for each in now]
        await cluster.start(gone)
        await everywhere(cluster, lambda node: [each.leader for each in partitions(node)] == [0, 1, 2])
        now = partitions(cluster.controller)
        assert all(set(each.isr) == {0, 1, 2} for each in now)
        assert [index for index in range(3) if now[index].leader_epoch > epochs[index]] == [gone]
        assert not list(check_image(cluster.controller.cluster))


async def test_a_node_that_falls_silent_is_fenced_everywhere_and_returns_under_a_new_epoch(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, QUICK_TO_FENCE) as cluster:
        controller = (await cluster.has_controller()).config.node_id
        silent = (controller + 1) % 3
        await make_topic(cluster, silent)
        node = cluster.nodes[silent]
        epoch = node.cluster.brokers[silent].epoch
        await node.lifecycle.stop()
        await everywhere(cluster, lambda each: not each.cluster.is_alive(silent))
        await everywhere(cluster, lambda each: partitions(each)[0].leader not in {silent, -1})
        await node.lifecycle.come_alive()
        await everywhere(cluster, lambda each: each.cluster.is_alive(silent))
        assert node.cluster.brokers[silent].epoch > epoch
        await everywhere(cluster, lambda each: partitions(each)[0].leader == silent)


async def test_the_next_controller_ends_what_the_one_before_it_had_not_begun(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, QUICK_TO_FENCE) as cluster:
        first = (await cluster.has_controller()).config.node_id
        silent, last = (first + 1) % 3, (first + 2) % 3
        await make_topic(cluster, silent, first)
        old = [each.leader_epoch for each in partitions(cluster.nodes[last])]
        await cluster.nodes[silent].lifecycle.stop()
        # The controller goes as well, before the session of the silent one is over.
        await cluster.stop(first)
        await everywhere(cluster, lambda node: node.authority.controller_id in {silent, last})
        await everywhere(cluster, lambda node: not node.cluster.is_alive(silent))
        await everywhere(cluster, lambda node: [each.leader for each in partitions(node)] == [last, last])
        now = partitions(cluster.nodes[last])
        assert all(each.leader_epoch > before for each, before in zip(now, old, strict=True))
        assert all(each.isr == (last,) and set(each.elr) == {silent} for each in now)
        await cluster.nodes[silent].lifecycle.come_alive()
        await cluster.start(first)
        await everywhere(cluster, lambda node: [each.leader for each in partitions(node)] == [silent, first])
        assert not list(check_image(cluster.nodes[last].cluster))


async def test_a_broker_that_was_fenced_while_it_leaves_asks_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        node = next(each for each in cluster.nodes.values() if not each.is_controller)
        assert node.lifecycle is not None
        asked: list[ApiKey] = []
        ask = node.authority.ask_controller

        def traced(api: ApiKey, *rest: Any, **named: Any) -> Any:
            asked.append(api)
            return ask(api, *rest, **named)

        monkeypatch.setattr(node.authority, "ask_controller", traced)
        node.lifecycle.epoch -= 1  # as after an answer that was lost: the controller has let this broker go
        await node.lifecycle.leave()
        assert asked == [ApiKey.BROKER_HEARTBEAT]
