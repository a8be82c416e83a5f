"""Clients that defeat batching are named, with the setting that mends it; others are not."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from several_nodes import cluster

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.server.node import Node
from log_broker.server.ops import client_habits
from log_broker.server.ops.client_habits import CLIENTS_MAX

LOGGER = client_habits.__name__


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    started = Node(BrokerConfig(data_dir=tmp_path, port=0))
    await started.start()
    await started.ensure_topic(CreateTopic(name="t", topic_id="1" * 32, partitions=1))
    yield started
    await started.stop()


def produce(port: int, client_id: str, count: int, *, awaits: bool) -> None:
    """Send records, and wait for each before the next if asked."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "client.id": client_id, "linger.ms": 50})
    for _ in range(count):
        producer.produce("t", b"value")
        if awaits:
            producer.flush(10)
    assert producer.flush(10) == 0


async def test_who_sends_a_request_for_each_record_is_named_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        node.habits.look()
        await asyncio.to_thread(produce, node.port, "hasty", 100, awaits=True)
        await asyncio.to_thread(produce, node.port, "patient", 1_000, awaits=False)
        node.habits.judge(seconds=1.0)
    [told] = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert re.fullmatch(
        r"client 'hasty' sends 1\d\d Produce requests a second with 1\.0 records each: .*linger\.ms.*", told
    )


async def test_who_asks_without_end_for_nothing_is_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def poll(client_id: str, wait_ms: int, seconds: float) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{node.port}",
                "group.id": client_id,
                "client.id": client_id,
                "fetch.wait.max.ms": wait_ms,
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        consumer.poll(seconds)
        consumer.close()

    node.habits.look()
    await asyncio.to_thread(poll, "restless", 0, 1.0)
    await asyncio.to_thread(poll, "calm", 500, 1.0)
    node.habits.judge(seconds=0.2)  # as if it had been shorter, however slow the machine is
    [told] = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert told.startswith("client 'restless' sends ")
    assert "100 % of them for nothing: raise fetch.max.wait.ms" in told


async def test_a_cluster_notes_it_in_its_events(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as nodes:
        noted: list[tuple[str, dict[str, object]]] = []
        leader = nodes[0]
        leader.events.note = lambda kind, text, **fields: noted.append((kind, fields))  # type: ignore[method-assign]
        leader.habits.look()
        for _ in range(200):
            leader.habits.produced("hasty", [])
        leader.habits.judge(seconds=1.0)
        fields = {"client_id": "hasty", "requests_per_second": 200, "records_per_request": 0.0}
        assert ("client_defeats_batching", fields) in noted


async def test_ids_without_number_take_no_memory_without_bound(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    node.habits.look()
    for number in range(CLIENTS_MAX + 500):
        for _ in range(100):
            node.habits.produced(f"client {number}", [b"too short"])
    assert len(node.habits._seen) == CLIENTS_MAX
    node.habits.judge(seconds=1.0)
    assert len(node.habits._named) == CLIENTS_MAX
    node.habits.look()
    for _ in range(200):
        node.habits.produced("another", [])
    node.habits.judge(seconds=1.0)
    assert len(node.habits._named) == CLIENTS_MAX
