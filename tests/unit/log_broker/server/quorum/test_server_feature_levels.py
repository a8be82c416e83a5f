"""Feature levels on real nodes: what they begin with, who may raise them, and an upgrade node by node under load."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from node_client import client_of
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.features import METADATA_VERSION, SUPPORTED, LevelRange, Ranges
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey

OLD: Ranges = {**SUPPORTED, METADATA_VERSION: LevelRange(25, 25)}
NEWEST = SUPPORTED[METADATA_VERSION].highest
UP, DOWN = 1, 2
TOPIC = "t"


async def update(node: Node, feature: str, level: int, kind: int = UP, *, validate_only: bool = False) -> Any:
    wanted = {"feature": feature, "max_version_level": level, "upgrade_type": kind}
    values = {"timeout": 10_000, "feature_updates": (wanted,), "validate_only": validate_only}
    async with client_of(node) as client:
        return await client.ask(ApiKey.UPDATE_FEATURES, values, version=1)


async def levels(node: Node, version: int = 4) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
    """Return what ApiVersions tells: what the node supports, what the cluster is at, and the epoch of that."""
    async with client_of(node) as client:
        values = {"client_software_name": "t", "client_software_version": "1"}
        told = await client.ask(ApiKey.API_VERSIONS, values, version=version)
    return (
        {each.name: (each.min_version, each.max_version) for each in told.supported_features},
        {each.name: each.max_version_level for each in told.finalized_features},
        told.finalized_features_epoch,
    )


async def test_a_new_node_is_at_the_newest_levels_and_lowers_those_that_may_be(tmp_path: Path) -> None:
    node = Node(BrokerConfig(data_dir=tmp_path, port=0))
    await node.start()
    try:
        supported, finalized, epoch = await levels(node)
        assert supported == {name: tuple(found) for name, found in SUPPORTED.items()}
        assert finalized == {name: found.highest for name, found in SUPPORTED.items()}
        assert "group.version" not in (await levels(node, 3))[0], (
            "older clients stumble over a feature that begins at 0"
        )
        checked = await update(node, "group.version", 0, DOWN, validate_only=True)
        assert [(each.feature, each.error_code) for each in checked.results] == [("group.version", 0)]
        assert (await levels(node))[1:] == (finalized, epoch)
        assert (await update(node, "group.version", 0, DOWN)).error_code == ErrorCode.NONE
        _, lowered, later = await levels(node)
        assert lowered == {name: level for name, level in finalized.items() if name != "group.version"}
        assert later > epoch
        async with client_of(node) as client:
            member = {"group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None}
            asked = {"rebalance_timeout": 1000, "subscribed_topic_names": (TOPIC,), "server_assignor": None}
            beat = {**member, **asked, "topic_partitions": (), "subscribed_topic_regex": None}
            answer = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat, version=1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "group.version is at 0" in answer.error_message
    finally:
        await node.stop()


async def test_a_directory_of_before_the_levels_is_at_the_lowest_until_it_is_raised(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0).with_settings({"fluvial.metadata.snapshot.entries": "10"})

    async def run(features: Ranges) -> Node:
        node = Node(config, features=features)
        await node.start()
        return node

    node = await run(OLD)
    assert not node.cluster.levels_set
    await node.stop()
    node = await run(SUPPORTED)
    assert node.cluster.levels[METADATA_VERSION] == 25
    answer = await update(node, METADATA_VERSION, NEWEST)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    refused = await update(node, METADATA_VERSION, 25, DOWN)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert refused.error_message.startswith(
        "The update failed for all features since the following feature had an error: Invalid update version 25"
    )
    for number in range(20):  # beyond a snapshot
        await node.ensure_topic(CreateTopic(name=f"t{number}", topic_id=uuid4().hex, partitions=1))
    await node.stop()
    node = await run(SUPPORTED)
    assert node.cluster.levels[METADATA_VERSION] == NEWEST
    assert node.cluster.brokers[0].features is not None
    await node.stop()
    with pytest.raises(BrokerError, match=r"node 0 supports levels 25 of metadata.version and the cluster is at level"):
        await run(OLD)


@asynccontextmanager
async def load(cluster: NodeCluster) -> AsyncIterator[list[int]]:
    """Produce numbers one after the other from a thread; yields those that are acknowledged so far."""
    acknowledged: list[int] = []
    over = threading.Event()
    servers = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1, "log_level": 0})

    def produce() -> None:
        number = 0
        while not over.wait(0.005):
            producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=delivered)
            producer.poll(0)
            number += 1
        producer.flush(30)

    def delivered(error: object, message: Any) -> None:
        if error is None:
            acknowledged.append(int(message.value()))

    producing = asyncio.create_task(asyncio.to_thread(produce))
    try:
        yield acknowledged
    finally:
        over.set()
        await producing


def read(cluster: NodeCluster) -> list[int]:
    servers = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
    reader = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": True, "log_level": 0})
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    while True:
        message = reader.poll(30)
        assert message is not None, "the end was not reached"
        if message.error() is not None:
            break
        value = message.value()
        assert value is not None
        found.append(int(value))
    reader.close()
    return found


async def test_three_nodes_are_upgraded_one_by_one_under_load_and_then_the_level_is_raised(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, features=OLD) as cluster:

        async def restarted(node_id: int, features: Ranges, acknowledged: list[int]) -> None:
            """Restart a node with another release while records are written, and see that they are."""
            await cluster.stop(node_id)
            cluster.features = features
            await cluster.start(node_id)
            await cluster.has_controller()
            await eventually(lambda: set(partition().isr) == {0, 1, 2})
            count = len(acknowledged)
            await eventually(lambda: len(acknowledged) > count)

        def partition() -> Any:
            return cluster.controller.cluster.topics[TOPIC].partitions[0]

        await cluster.controller.ensure_topic(CreateTopic(name=TOPIC, topic_id=uuid4().hex, assignments={0: (0, 1, 2)}))
        await eventually(lambda: all(TOPIC in node.cluster.topics for node in cluster.nodes.values()))
        async with load(cluster) as acknowledged:
            await restarted(0, SUPPORTED, acknowledged)
            # As long as the level is not raised, a node may go back to the release that it came from.
            await restarted(0, OLD, acknowledged)
            for node_id in range(3):
                refused = await update(cluster.nodes[0], METADATA_VERSION, NEWEST)
                assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
                assert "only supports versions 25" in refused.error_message
                await restarted(node_id, SUPPORTED, acknowledged)
            assert (await update(cluster.nodes[1], METADATA_VERSION, NEWEST)).error_code == ErrorCode.NONE
            await eventually(
                lambda: all(node.cluster.levels[METADATA_VERSION] == NEWEST for node in cluster.nodes.values())
            )
            await cluster.stop(2)
            cluster.features = OLD
            with pytest.raises(BrokerError, match="start it with a newer release") as error:
                await cluster.start(2)
            assert error.value.code is ErrorCode.UNSUPPORTED_VERSION
            cluster.features = SUPPORTED
            await cluster.start(2)
        found = await asyncio.to_thread(read, cluster)
        assert set(acknowledged) <= set(found)
        assert len(set(found)) == len(found), "none is doubled either"


async def test_the_controller_refuses_the_registration_of_a_release_that_is_too_old(tmp_path: Path) -> None:
    node = Node(BrokerConfig(data_dir=tmp_path, port=0))
    await node.start()
    try:
        listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
        wanted = {"broker_id": 5, "cluster_id": node.cluster_id, "incarnation_id": uuid4(), "listeners": (listener,)}
        async with client_of(node) as client:
            values = {**wanted, "features": (), "rack": None, "log_dirs": (), "previous_broker_epoch": -1}
            answer = await client.ask(ApiKey.BROKER_REGISTRATION, values, version=4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert 5 not in node.cluster.brokers
    finally:
        await node.stop()
