"""The cluster's diary: who writes it, where, and what holds it up."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_cluster import cluster_of

from log_broker.config import BrokerConfig
from log_broker.core.cluster import EVENTS_TOPIC
from log_broker.server import events as diary
from log_broker.server.internal_log import stored_records
from log_broker.server.node import Node


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Two nodes that know each other."""
    async with cluster_of(tmp_path, 2) as cluster:
        yield [cluster.nodes[node_id] for node_id in range(2)]


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(BrokerConfig(data_dir=tmp_path / "n", port=0))
    await node.start()
    yield node
    await node.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.005)


def written(nodes: list[Node]) -> list[dict[str, Any]]:
    """The diary as far as it is written, from whichever node leads it."""
    for node in nodes:
        if (runtime := node.logs.get(EVENTS_TOPIC, 0)) is not None:
            return [json.loads(record.value or b"") for record in stored_records(runtime)]
    return []


def texts(nodes: list[Node]) -> list[str]:
    return [event["text"] for event in written(nodes)]


async def test_what_the_image_shows_is_told_once_and_in_words(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2) as cluster:
        nodes = list(cluster.nodes.values())
        third = cluster.nodes[2] = cluster.node(2, process_roles="broker")
        await third.start()
        joined = f"node 2 joined the cluster at 127.0.0.1:{third.port}"
        await eventually(lambda: joined in texts(nodes))
        assert texts(nodes).count(joined) == 1
        (event,) = (event for event in written(nodes) if event["text"] == joined)
        known = (event["kind"], event["node"], event["broker"])
        assert known == ("broker_registered", cluster.controller.config.node_id, 2)


async def test_every_node_notes_into_one_topic_wherever_that_is_led(nodes: list[Node]) -> None:
    for node in nodes:
        node.events.note("truncated", f"seen by {node.config.node_id}", topic="x", first=120, end=132)
    await eventually(lambda: {"seen by 0", "seen by 1"} <= set(texts(nodes)))
    found = {event["node"]: event for event in written(nodes) if event["kind"] == "truncated"}
    assert [(found[at]["topic"], found[at]["first"], found[at]["end"]) for at in (0, 1)] == [("x", 120, 132)] * 2
    assert len({event["id"] for event in written(nodes)}) == len(written(nodes))


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
