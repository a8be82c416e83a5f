"""Three nodes without a router between them and their clients: who is asked, who answers, who refuses."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from node_client import client_of
from node_cluster import cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Three nodes that know each other."""
    async with cluster_of(tmp_path, 3) as cluster:
        yield [cluster.nodes[node_id] for node_id in range(3)]


async def topic_on(nodes: list[Node], name: str, partitions: int) -> None:
    await nodes[0].ensure_topic(
        CreateTopic(name=name, topic_id=uuid4().hex, partitions=partitions, replication_factor=1)
    )
    await eventually(lambda: all(name in node.cluster.topics for node in nodes))
    await eventually(lambda: sum(len(led(node, name, partitions)) for node in nodes) == partitions)


def led(node: Node, topic: str, partitions: int) -> list[int]:
    return [partition for partition in range(partitions) if node.logs.get(topic, partition) is not None]


async def test_more_partitions_than_nodes_are_shared_out(nodes: list[Node]) -> None:
    await topic_on(nodes, "many", 16)
    assert sum(len(led(node, "many", 16)) for node in nodes) == 16
    # Shares are even over all topics, and the cluster may have made some of its own.
    leads = Counter(each.leader for topic in nodes[0].cluster.topics.values() for each in topic.partitions)
    assert max(leads.values()) - min(leads[node.config.node_id] for node in nodes) <= 1


async def test_one_address_leads_a_stock_client_to_every_leader(nodes: list[Node]) -> None:
    first, *others = nodes
    # Partitions of the two others only: the node that is asked first leads none.
    await first.ensure_topic(
        CreateTopic(name="t", topic_id=uuid4().hex, assignments={0: (1,), 1: (2,), 2: (1,), 3: (2,)})
    )
    await eventually(lambda: [led(node, "t", 4) for node in nodes] == [[], [0, 2], [1, 3]])
    # A dead address beside the living one does no harm.
    servers = f"127.0.0.1:{first.port},127.0.0.1:1"

    def talk() -> list[int]:
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        for number in range(400):
            producer.produce("t", value=b"%d" % number, partition=number % 4)
        assert producer.flush(30) == 0
        reader = Consumer({"bootstrap.servers": servers, "group.id": "none", "log_level": 0})
        reader.assign([TopicPartition("t", partition, 0) for partition in range(4)])
        found: list[int] = []
        deadline = time.monotonic() + 30
        while len(found) < 400 and time.monotonic() < deadline:
            for message in reader.consume(100, 0.2):
                value = message.value()
                assert message.error() is None
                assert value is not None
                found.append(int(value))
        reader.close()
        return found

    assert sorted(await asyncio.to_thread(talk)) == list(range(400))
    for api in (ApiKey.PRODUCE, ApiKey.FETCH):
        assert all(node.counters.requests[api].count for node in others)
    assert led(first, "t", 4) == []
    assert first.counters.requests[ApiKey.METADATA].count > 0
    for node in others:
        for partition in led(node, "t", 4):
            runtime = node.logs.get("t", partition)
            assert runtime is not None
            assert runtime.log_end_offset == 100


async def test_who_does_not_lead_refuses_writes_and_reads(nodes: list[Node]) -> None:
    await nodes[0].ensure_topic(CreateTopic(name="t", topic_id=uuid4().hex, assignments={0: (1,)}))
    await eventually(lambda: all("t" in node.cluster.topics for node in nodes))
    await eventually(lambda: nodes[1].logs.get("t", 0) is not None)
    batch = bytes(build_batch([(time.time_ns() // 1_000_000, b"k", b"v", ())]))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    fetch = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "forgotten_topics_data": ()}
    asked = {**fetch, "topics": ({"topic": "t", "partitions": (partition,)},)}
    for node, expected in zip(nodes, ("refuses", "leads", "refuses"), strict=True):
        code = ErrorCode.NONE if expected == "leads" else ErrorCode.NOT_LEADER_OR_FOLLOWER
        async with client_of(node) as client:
            assert (await client.produce("t", batch)).error_code == code
            answer = await client.ask(ApiKey.FETCH, asked, version=12)
            assert answer.responses[0].partitions[0].error_code == code
    runtime = nodes[1].logs.get("t", 0)
    assert runtime is not None
    assert runtime.log_end_offset == 1, "what was refused was appended nowhere"


async def test_every_node_names_all_of_them(nodes: list[Node]) -> None:
    expected = {(node.config.node_id, "127.0.0.1", node.port) for node in nodes}
    for node in nodes:
        async with client_of(node) as client:
            answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
            assert {(broker.broker_id, broker.host, broker.port) for broker in answer.brokers} == expected
            assert answer.cluster_id == nodes[0].cluster_id
