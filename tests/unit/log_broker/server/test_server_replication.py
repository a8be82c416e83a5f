"""Replicas on several nodes that fetch from each other over sockets, with stock clients beside them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from several_nodes import cluster, eventually

from log_broker.core.controller import CreateTopic
from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.server.node import Node
from log_broker.server.replica_manager import ReplicaManager

TOPIC = "t"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with cluster(tmp_path) as started:
        yield started


def servers(nodes: list[Node]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


async def make_topic(nodes: list[Node], *replicas: tuple[int, ...], **overrides: str) -> None:
    """Make a topic whose partitions have these replicas, their leaders first, and wait until all are there."""
    await nodes[0].ensure_topic(
        CreateTopic(
            name=TOPIC,
            topic_id=uuid4().hex,
            assignments=dict(enumerate(replicas)),
            overrides={name.replace("_", "."): value for name, value in overrides.items()},
        )
    )
    for index, holders in enumerate(replicas):
        for holder in holders:
            await eventually(lambda n=nodes[holder], p=index: n.logs.get(TOPIC, p) is not None)
        await eventually(lambda n=nodes[holders[0]], p=index: n.logs.led(TOPIC, p) is not None)


async def produce(node: Node, count: int, *, first: int = 0, acks: int = -1, index: int = 0) -> None:
    """Append numbered records at the leader, one batch each."""
    runtime = node.logs.led(TOPIC, index)
    assert runtime is not None
    if acks == -1:
        await asyncio.gather(*(runtime.append_records([(None, b"%d" % at)]) for at in range(first, first + count)))
        return
    answers = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for at, answer in enumerate(answers):
        batch = build_batch([(node.clock_ms(), None, b"%d" % (first + at), ())])
        runtime.append(batch, acks=acks, done=answer.set_result)
    assert {(await answer).error for answer in answers} == {ErrorCode.NONE}


def ends(nodes: list[Node], index: int = 0) -> set[tuple[int, int]]:
    """The (log end, high watermark) of each replica."""
    found = (node.logs.get(TOPIC, index) for node in nodes)
    return {(runtime.log_end_offset, runtime.high_watermark) for runtime in found if runtime is not None}


def log_bytes(tmp_path: Path, index: int = 0) -> list[bytes]:
    files = sorted(tmp_path.glob(f"n*/{TOPIC}-{index}/*.log"))
    return [file.read_bytes() for file in files]


def read_all(bootstrap: str, count: int, **settings: str) -> list[bytes]:
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0, "enable.partition.eof": True, **settings}
    )
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    for _ in range(300):
        messages = reader.consume(100, 0.1)
        found += [message.value() for message in messages if message.error() is None]
        if len(found) >= count and any(message.error() is not None for message in messages):
            break
    reader.close()
    return found


async def test_followers_copy_byte_for_byte_and_describe_shows_them(nodes: list[Node], tmp_path: Path) -> None:
    await make_topic(nodes, (1, 2, 0), (2, 0, 1))
    await asyncio.gather(produce(nodes[1], 200), produce(nodes[2], 100, index=1))
    await eventually(lambda: ends(nodes) == {(200, 200)} and ends(nodes, 1) == {(100, 100)})
    for index in (0, 1):
        copies = log_bytes(tmp_path, index)
        assert len(copies) == 3
        assert len(set(copies)) == 1
    admin = AdminClient({"bootstrap.servers": servers(nodes), "log_level": 0})
    described = (await asyncio.to_thread(admin.list_topics, TOPIC, 10)).topics[TOPIC].partitions
    assert {at: (found.leader, sorted(found.isrs), found.replicas) for at, found in described.items()} == {
        0: (1, [0, 1, 2], [1, 2, 0]),
        1: (2, [0, 1, 2], [2, 0, 1]),
    }


async def test_another_replica_leads_when_the_leader_stops_and_the_returned_one_catches_up(
    nodes: list[Node], tmp_path: Path
) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 20)
    old = nodes[1]
    await old.stop()
    await eventually(lambda: nodes[2].logs.led(TOPIC, 0) is not None)
    await produce(nodes[2], 30, first=20)
    back = Node(old.static_config)
    await back.start()
    try:
        survivors = [nodes[0], nodes[2], back]
        await eventually(lambda: ends(survivors) == {(50, 50)})
        leader = nodes[2].logs.led(TOPIC, 0)
        assert leader is not None
        await eventually(lambda: set(leader.isr) == {0, 1, 2})
        assert len(set(log_bytes(tmp_path))) == 1
        found = await asyncio.to_thread(read_all, servers([nodes[0], nodes[2]]), 50)
        assert sorted(map(int, found)) == list(range(50))
    finally:
        await back.stop()


async def test_a_divergent_tail_is_cut_and_told_of(
    nodes: list[Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_topic(nodes, (1, 2, 0), fluvial_durability="memory")
    await produce(nodes[1], 10)
    await eventually(lambda: ends(nodes) == {(10, 10)})
    for follower in (nodes[0], nodes[2]):
        follower.replicas.stop()
    await produce(nodes[1], 5, first=100, acks=1)
    await nodes[1].stop()
    for follower in (nodes[0], nodes[2]):
        follower.replicas = ReplicaManager(follower)
        follower.replicas.apply()
    await eventually(lambda: nodes[2].logs.led(TOPIC, 0) is not None)
    await produce(nodes[2], 7, first=10)
    back = Node(nodes[1].static_config)
    await back.start()
    try:
        await eventually(lambda: ends([nodes[0], nodes[2], back]) == {(17, 17)})
        assert len(set(log_bytes(tmp_path))) == 1
        assert f"{TOPIC}-0: offsets 10 to 14 on node 1 are not in the log of its leader, node 2" in caplog.text
    finally:
        await back.stop()


async def test_a_producer_that_comes_to_a_follower_is_told_who_leads(nodes: list[Node]) -> None:
    await make_topic(nodes, (1, 2, 0))
    producer = Producer({"bootstrap.servers": servers([nodes[2]]), "enable.idempotence": True, "log_level": 0})
    for at in range(20):
        producer.produce(TOPIC, b"%d" % at, partition=0)
    assert await asyncio.to_thread(producer.flush, 20) == 0
    await eventually(lambda: ends(nodes) == {(20, 20)})
    assert await asyncio.to_thread(read_all, servers([nodes[0]]), 20) == [b"%d" % at for at in range(20)]


async def test_a_deleted_topic_goes_from_every_node_and_one_of_its_name_is_another(
    nodes: list[Node], tmp_path: Path
) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 3)
    admin = AdminClient({"bootstrap.servers": servers(nodes), "log_level": 0})
    await asyncio.to_thread(lambda: admin.delete_topics([TOPIC])[TOPIC].result(10))
    await eventually(lambda: all(node.logs.get(TOPIC, 0) is None for node in nodes))
    await make_topic(nodes, (2, 0, 1))
    await produce(nodes[2], 2)
    await eventually(lambda: ends(nodes) == {(2, 2)})


async def test_a_wiped_replica_is_filled_again_from_where_the_leader_begins(nodes: list[Node], tmp_path: Path) -> None:
    await make_topic(nodes, (1, 2, 0))
    await produce(nodes[1], 10)
    await eventually(lambda: ends(nodes) == {(10, 10)})
    leader = nodes[1].logs.led(TOPIC, 0)
    assert leader is not None
    leader.delete_records(4)
    for node in (nodes[0], nodes[2]):
        follower = node.logs.get(TOPIC, 0)
        assert follower is not None
        await eventually(lambda f=follower: f.log_start_offset == 4)
