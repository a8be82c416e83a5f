"""The cluster's diary: who writes it, where, and what holds it up."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_cluster import cluster_of, eventually
from several_nodes import cluster, topic_of

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.image import EVENTS_TOPIC
from log_broker.server.node import Node
from log_broker.server.ops import events as diary
from log_broker.server.partitions.internal_log import stored_records


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(BrokerConfig(data_dir=tmp_path / "n", port=0))
    await node.start()
    yield node
    await node.stop()


def written(nodes: list[Node]) -> list[dict[str, Any]]:
    """The diary as far as it is written, from whichever node leads it."""
    for node in nodes:
        runtime = node.logs.get(EVENTS_TOPIC, 0)
        if runtime is not None and runtime.is_leader:
            return [json.loads(record.value or b"") for record in stored_records(runtime)]
    return []


def texts(nodes: list[Node]) -> list[str]:
    return [event["text"] for event in written(nodes)]


async def test_what_the_image_shows_is_told_once_and_in_words(nodes: list[Node]) -> None:
    await topic_of(nodes, "flights", [0, 1, 2])
    admin = next(node for node in nodes if not node.is_controller)
    nodes[0].events.note("test", "before")
    await eventually(lambda: "before" in texts(nodes))
    await admin.stop()
    number = admin.config.node_id
    left = f"node {number} stopped in order and was fenced"
    rest = [node for node in nodes if node is not admin]
    await eventually(lambda: left in texts(rest))
    assert texts(rest).count(left) == 1
    (event,) = (event for event in written(rest) if event["text"] == left)
    assert (event["kind"], event["broker"], event["why"]) == ("broker_fenced", number, "left")
    (controller,) = (node for node in rest if node.is_controller)
    assert event["node"] == controller.config.node_id


async def test_every_node_notes_into_one_topic_wherever_that_is_led(nodes: list[Node]) -> None:
    for node in nodes:
        node.events.note("truncated", f"seen by {node.config.node_id}", topic="x", first=120, end=132)
    await eventually(lambda: {"seen by 0", "seen by 1", "seen by 2"} <= set(texts(nodes)))
    found = {event["node"]: event for event in written(nodes) if event["kind"] == "truncated"}
    assert [(found[at]["topic"], found[at]["first"], found[at]["end"]) for at in range(3)] == [("x", 120, 132)] * 3
    assert len({event["id"] for event in written(nodes)}) == len(written(nodes))


async def test_a_lone_replica_that_comes_back_without_its_log_is_reported(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        loser = next(node_id for node_id, node in cluster.nodes.items() if not node.is_controller)
        await topic_of([cluster.nodes[at] for at in range(3)], "lone", [loser, *(at for at in range(3) if at != loser)])
        for index in range(3):
            leader = next(node for node in cluster.nodes.values() if node.logs.led("lone", index) is not None)
            await leader.logs.led("lone", index).own_appends.records([(None, b"kept")])
        await cluster.kill(loser)
        shutil.rmtree(cluster.directory(loser) / "lone-0")
        await cluster.start(loser)
        await eventually(lambda: cluster.nodes[loser].logs.led("lone", 0) is not None)
        await eventually(lambda: any(event["kind"] == "log_lost" for event in written(list(cluster.nodes.values()))))
        (lost,) = (event for event in written(list(cluster.nodes.values())) if event["kind"] == "log_lost")
        assert (lost["topic"], lost["partition"], lost["leader"], lost["node"]) == ("lone", 0, loser, loser)
        assert f"lone-0: node {loser}, the last that was in sync, has no log of it" in lost["text"]


async def test_a_lone_node_has_no_diary_until_something_is_noted(lone: Node) -> None:
    await asyncio.sleep(0)
    assert EVENTS_TOPIC not in lone.cluster.topics
    lone.events.note("records_lost", "gone")
    await eventually(lambda: texts([lone]) == ["gone"])


async def test_the_queue_is_bounded_and_says_how_much_it_did_not_take(
    lone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diary, "QUEUE_MAX", 3)
    for number in range(10):
        lone.events.note("test", f"{number}")
    assert lone.events.waiting == 3
    await eventually(lambda: len(texts([lone])) == 4)
    assert texts([lone]) == ["0", "1", "2", "7 events were not kept: too many waited to be written"]


async def test_events_wait_for_a_leader(lone: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diary, "RETRY_SECONDS", 0.01)
    lone.events.note("test", "first")
    await eventually(lambda: texts([lone]) == ["first"])
    leader = lone.cluster.brokers[0]
    lone.cluster.brokers[0] = replace(leader, is_fenced=True)
    lone.events.note("test", "second")
    await asyncio.sleep(0.05)
    assert (lone.events.waiting, texts([lone])) == (1, ["first"])
    lone.cluster.brokers[0] = leader
    await eventually(lambda: texts([lone]) == ["first", "second"])


async def test_what_is_no_json_is_left_out_and_holds_nothing_up(lone: Node) -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    lone.events.note("test", "broken", value=endless)
    lone.events.note("test", "sound", path=Path("x"))
    await eventually(lambda: texts([lone]) == ["sound"])
    assert written([lone])[0]["path"] == "x"
