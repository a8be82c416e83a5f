"""The least replication factor of a cluster, as a stock client meets it."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
)
from node_client import client_of
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.config.policy import REPLICATION_FACTOR_MIN
from log_broker.core.cluster.controller import Operation
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.internal_topics import ensure_offsets_topic
from log_broker.server.handlers.admin.describe_configs import BROKER
from log_broker.server.partitions.internal_log import TopicLog
from log_broker.wire.apis import ApiKey

# Auto-creation asks for one replica, as it does on a laptop.
SETTINGS = {"default.replication.factor": "1", "offsets.topic.num.partitions": "1"}


async def demand(cluster: NodeCluster, least: str | None) -> None:
    """Set the limit for all brokers, for which the confluent client has no name, or with None take it back."""
    operation = Operation.DELETE if least is None else Operation.SET
    config = {"name": REPLICATION_FACTOR_MIN, "config_operation": operation, "value": least}
    resource = {"resource_type": BROKER, "resource_name": "", "configs": (config,)}
    async with client_of(cluster.nodes[0]) as client:
        values = {"resources": (resource,), "validate_only": False}
        (answer,) = (await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, values)).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    wanted = int(least or "1")
    await eventually(
        lambda: all(node.config.fluvial_replication_factor_min == wanted for node in cluster.nodes.values())
    )


def refused(admin: AdminClient, topic: NewTopic, *, validate_only: bool = False) -> str:
    with pytest.raises(KafkaException) as failure:
        admin.create_topics([topic], validate_only=validate_only)[topic.topic].result(30)
    error = failure.value.args[0]
    assert error.code() == KafkaError.POLICY_VIOLATION
    return str(error.str())


async def move(cluster: NodeCluster, topic: str, *replicas: int) -> tuple[ErrorCode, str | None]:
    """Ask for other replicas of a partition; the confluent client has no call for it."""
    wanted = {"name": topic, "partitions": ({"partition_index": 0, "replicas": replicas},)}
    async with client_of(cluster.nodes[0]) as client:
        values = {"timeout_ms": 30_000, "topics": (wanted,)}
        answer = await client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, values, version=0)
    (outcome,) = answer.responses[0].partitions
    return ErrorCode(outcome.error_code), outcome.error_message


async def test_the_limit_holds_for_every_way_to_a_topic_from_when_it_is_set(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, SETTINGS) as cluster:
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

        def make_small(name: str) -> None:
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)

        def with_it() -> None:
            named = "fluvial.replication.factor.min is 3: ask for 3 replicas or more, or lower"
            assert named in refused(admin, NewTopic("new", 1, 1))
            assert named in refused(admin, NewTopic("new", 1, 2), validate_only=True)
            assert named in refused(admin, NewTopic("new", 1, replica_assignment=[[0, 1]]))
            assert "by default.replication.factor" in refused(admin, NewTopic("new", 1, -1))
            producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": 3_000, "log_level": 0})
            failures: list[KafkaError | None] = []
            producer.produce("automatic", b"v", on_delivery=lambda error, _: failures.append(error))
            producer.flush(30)
            assert [error is None for error in failures] == [False]
            assert {"new", "automatic"}.isdisjoint(admin.list_topics(timeout=30).topics)
            admin.create_topics([NewTopic("new", 1, 3)])["new"].result(30)
            admin.create_partitions([NewPartitions("old", 2)])["old"].result(30)

        await asyncio.to_thread(make_small, "old")
        await demand(cluster, "3")
        await asyncio.to_thread(with_it)
        async with client_of(cluster.nodes[1]) as client:
            asked = {
                "topics": ({"topic_id": None, "name": "automatic"},),
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
            }
            (topic,) = (await client.ask(ApiKey.METADATA, asked)).topics
            assert topic.error_code == ErrorCode.POLICY_VIOLATION
        code, message = await move(cluster, "new", 0, 1)
        assert code is ErrorCode.POLICY_VIOLATION
        assert "new-0 would have a replication factor of 2, and fluvial.replication.factor.min is 3" in (message or "")
        assert await move(cluster, "old", 2) == (ErrorCode.NONE, None)

        # The brokers' own topics are made all the same, with what the limit asks for.
        await ensure_offsets_topic(cluster.nodes[0])
        await TopicLog(cluster.nodes[1], "_schemas").ensure()
        for name in ("__consumer_offsets", "_schemas"):
            await eventually(lambda name=name: name in cluster.nodes[0].cluster.topics)
            assert cluster.nodes[0].cluster.topics[name].partitions[0].factor == 3
        await demand(cluster, None)
        await asyncio.to_thread(make_small, "small")


async def test_one_broker_that_demands_more_has_groups_all_the_same(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, {REPLICATION_FACTOR_MIN: "3"}) as cluster:
        node = cluster.nodes[0]
        await ensure_offsets_topic(node)
        assert node.cluster.topics["__consumer_offsets"].partitions[0].replicas == (0,)
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}", "log_level": 0})
        assert REPLICATION_FACTOR_MIN in await asyncio.to_thread(refused, admin, NewTopic("t", 1, 1))
