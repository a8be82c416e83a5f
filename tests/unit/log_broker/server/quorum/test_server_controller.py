"""The controller over the wire: a real node, and brokers that are nothing but what they say to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from node_client import NodeClient, client_of
from node_cluster import eventually

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.features import SUPPORTED, told_of
from log_broker.core.cluster.image import PartitionImage
from log_broker.core.raft.effects import Proposed
from log_broker.errors import ErrorCode
from log_broker.server.handlers.admin.describe_configs import BROKER, TOPIC
from log_broker.server.node import Node
from log_broker.server.ops.config_reports import ConfigSource
from log_broker.wire.apis import ApiKey

PREFERRED, UNCLEAN = 0, 1


class Cluster:
    """Node 0 is real and controls; 1, 2 and 3 are pretended."""

    def __init__(self, node: Node, client: NodeClient) -> None:
        self.node = node
        self.client = client
        self.epochs: dict[int, int] = {}

    async def register(self, node_id: int, **fields: Any) -> Any:
        answer = await self.client.ask(
            ApiKey.BROKER_REGISTRATION,
            {
                "broker_id": node_id,
                "cluster_id": self.node.cluster_id,
                "incarnation_id": UUID(int=node_id + 1),
                "listeners": ({"name": "PLAINTEXT", "host": "nowhere", "port": 1, "security_protocol": 0},),
                "features": [
                    {"name": name, "min_supported_version": lowest, "max_supported_version": highest}
                    for name, lowest, highest in told_of(SUPPORTED)
                ],
                "rack": None,
                "log_dirs": (UUID(int=100 + node_id),),
                **fields,
            },
            version=4,
        )
        if answer.error_code == ErrorCode.NONE:
            self.epochs[node_id] = answer.broker_epoch
        return answer

    async def beat(self, node_id: int, **fields: Any) -> Any:
        values = {
            "broker_id": node_id,
            "broker_epoch": self.epochs[node_id],
            "current_metadata_offset": self.node.cluster.version,
            "want_fence": False,
            "want_shut_down": False,
            **fields,
        }
        return await self.client.ask(ApiKey.BROKER_HEARTBEAT, values, version=1)

    async def start(self, node_id: int) -> None:
        await self.register(node_id)
        assert not (await self.beat(node_id)).is_fenced

    async def create(self, name: str, *replicas: int, **settings: str) -> None:
        wanted = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": ({"partition_index": 0, "broker_ids": replicas},),
            "configs": [{"name": key.replace("_", "."), "value": text} for key, text in settings.items()],
        }
        answer = await self.client.ask(ApiKey.CREATE_TOPICS, {"topics": (wanted,), "timeout": 1000})
        assert answer.topics[0].error_code == ErrorCode.NONE

    def partition(self, name: str = "t") -> PartitionImage:
        return self.node.cluster.topics[name].partitions[0]

    async def want_isr(self, node_id: int, *members: int, **fields: Any) -> Any:
        now = self.partition()
        partition = {
            "partition_index": 0,
            "leader_epoch": now.leader_epoch,
            "new_isr_with_epochs": [{"broker_id": each, "broker_epoch": self.epochs.get(each, -1)} for each in members],
            "partition_epoch": now.partition_epoch,
            **fields,
        }
        topic_id = UUID(hex=self.node.cluster.topics["t"].topic_id)
        request = {
            "broker_id": node_id,
            "broker_epoch": self.epochs[node_id],
            "topics": ({"topic_id": topic_id, "partitions": (partition,)},),
        }
        answer = await self.client.ask(ApiKey.ALTER_PARTITION, request, version=3)
        return answer.topics[0].partitions[0] if answer.topics else answer

    async def elect(self, kind: int, *topics: str) -> dict[str, tuple[ErrorCode, ...]]:
        asked = [{"topic": name, "partitions": (0,)} for name in topics] or None
        request = {"election_type": kind, "topic_partitions": asked, "timeout": 1000}
        answer = await self.client.ask(ApiKey.ELECT_LEADERS, request, version=2)
        assert answer.error_code == ErrorCode.NONE
        return {
            found.topic: tuple(ErrorCode(each.error_code) for each in found.partition_result)
            for found in answer.replica_election_results
        }

    async def reassign(self, name: str, replicas: tuple[int, ...] | None, version: int = 0, **fields: Any) -> ErrorCode:
        partition = {"partition_index": 0, "replicas": replicas}
        request = {"topics": ({"name": name, "partitions": (partition,)},), "timeout": 1000, **fields}
        answer = await self.client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, version=version)
        assert answer.error_code == ErrorCode.NONE
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    async def moves(self, topics: Any = None) -> dict[str, Any]:
        request = {"topics": topics, "timeout": 1000}
        answer = await self.client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, version=0)
        return {
            topic.name: (each.replicas, each.adding_replicas, each.removing_replicas)
            for topic in answer.topics
            for each in topic.partitions
        }

    async def configs(self, kind: int, name: str, *keys: str) -> dict[str, tuple[str, int]]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        answer = await self.client.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": (resource,)})
        return {each.name: (each.value, each.config_source) for each in answer.results[0].configs}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        node = Node(BrokerConfig(data_dir=tmp_path / "node", port=0))
        await node.start()
        stack.push_async_callback(node.stop)
        client = await stack.enter_async_context(client_of(node))
        cluster = Cluster(node, client)
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        yield cluster
        for node_id in (1, 2, 3):
            await cluster.beat(node_id, want_fence=True)  # a node that stops waits for others that are there


async def test_those_are_woken_by_a_change_whose_condition_holds(cluster: Cluster) -> None:
    quorum, topics = cluster.node.quorum, cluster.node.cluster.topics
    every, made, other = (
        quorum.changes.next(),
        quorum.changes.next(lambda: "made" in topics),
        quorum.changes.next(lambda: "other" in topics),
    )
    await cluster.client.create("made")
    await asyncio.wait((every, made), timeout=10)
    assert (every.done(), made.done(), other.done()) == (True, True, False)
    other.cancel()


async def test_a_broker_comes_in_is_fenced_and_comes_again_under_another_epoch(cluster: Cluster) -> None:
    old = cluster.epochs[1]
    assert (await cluster.register(1)).broker_epoch == old, "the answer may have been lost"
    assert (await cluster.beat(1, want_fence=True)).is_fenced
    assert not cluster.node.cluster.is_alive(1)
    assert (await cluster.beat(1)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert (await cluster.register(1)).broker_epoch > old
    late = await cluster.beat(1, current_metadata_offset=0)
    assert (late.is_caught_up, late.is_fenced) == (False, True)
    back = await cluster.beat(1)
    assert (back.is_caught_up, back.is_fenced) == (True, False)


async def test_a_fence_that_is_decided_is_told_before_it_is_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.node
    assert node.controller is not None
    propose = node.quorum.propose
    held: list[tuple[int, bytes, asyncio.Future[Proposed]]] = []

    def hold(epoch: int, value: bytes) -> asyncio.Future[Proposed]:
        held.append((epoch, value, node.loop.create_future()))
        return held[-1][-1]

    with monkeypatch.context() as patch:
        patch.setattr(node.quorum, "propose", hold)
        node.controller.process_ended(1, certain=True)
        await eventually(lambda: bool(held))
        assert node.cluster.is_alive(1)
        assert (await cluster.beat(1)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert not (await cluster.beat(2)).is_fenced, "others do not wait for the commit"
    for epoch, value, answer in held:
        answer.set_result(await propose(epoch, value))
    assert not node.cluster.is_alive(1)
    await cluster.start(1)


async def test_a_registration_that_cannot_be_is_refused(cluster: Cluster) -> None:
    other = {"incarnation_id": UUID(int=50), "log_dirs": (UUID(int=51),)}
    for fields, code in (
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"listeners": ()}, ErrorCode.INVALID_REQUEST),
        (other, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        ({"incarnation_id": UUID(int=50), "log_dirs": (UUID(int=102),)}, ErrorCode.INVALID_REGISTRATION),
    ):
        assert (await cluster.register(1, **fields)).error_code == code
    unknown = await cluster.client.ask(
        ApiKey.BROKER_HEARTBEAT,
        {
            "broker_id": 9,
            "broker_epoch": 1,
            "current_metadata_offset": 0,
            "want_fence": False,
            "want_shut_down": False,
        },
        version=0,
    )
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_a_broker_that_stops_is_asked_to_wait_until_others_lead(cluster: Cluster) -> None:
    await cluster.create("t", 1, 2)
    first = await cluster.beat(1, want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    for node_id in (2, 3):
        await cluster.beat(node_id)
    # Node 0 is real and tells by itself how far it is.
    while not (last := await cluster.beat(1, want_shut_down=True)).should_shut_down:
        pass
    assert last.is_fenced


async def test_leaders_change_their_isr_and_are_told_why_not(cluster: Cluster) -> None:
    await cluster.create("t", 1, 2, 3)
    answer = await cluster.want_isr(1, 1, 3)
    assert (answer.error_code, answer.isr, answer.partition_epoch, answer.leader_id) == (ErrorCode.NONE, (1, 3), 1, 1)
    for wanted, fields, code in (
        ((1, 3), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 3), {"leader_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ((3,), {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        assert (await cluster.want_isr(1, *wanted, **fields)).error_code == code
    assert (await cluster.want_isr(2, 2)).error_code == ErrorCode.INVALID_REQUEST
    await cluster.beat(2, want_fence=True)
    assert (await cluster.want_isr(2, 2)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert (await cluster.want_isr(1, 1, 2)).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert (await cluster.want_isr(1, 1)).error_code == ErrorCode.NONE
    assert cluster.partition().elr == (3,)


async def test_elections_by_request(cluster: Cluster) -> None:
    await cluster.create("t", 1, 2)
    await cluster.create("u", 2)
    assert await cluster.elect(PREFERRED, "t", "none") == {
        "t": (ErrorCode.ELECTION_NOT_NEEDED,),
        "none": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,),
    }
    assert await cluster.elect(PREFERRED) == {}, "only what was held is told"
    await cluster.beat(1, want_fence=True)
    assert await cluster.elect(PREFERRED) == {"t": (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,)}
    await cluster.start(1)
    assert (await cluster.want_isr(2, 2, 1)).error_code == ErrorCode.NONE
    assert await cluster.elect(PREFERRED) == {"t": (ErrorCode.NONE,)}
    assert cluster.partition().leader == 1
    await cluster.want_isr(1, 1)
    await cluster.beat(2, want_fence=True)
    await cluster.beat(1, want_fence=True)
    assert await cluster.elect(UNCLEAN, "u") == {"u": (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,)}
    await cluster.reassign("t", (1, 2, 3))
    assert await cluster.elect(UNCLEAN, "t") == {"t": (ErrorCode.NONE,)}
    assert (cluster.partition().leader, cluster.partition().recovering) == (3, True)
    assert cluster.node.counters.unclean_elections == 1
    request = {"election_type": 7, "topic_partitions": None, "timeout": 1000}
    refused = await cluster.client.ask(ApiKey.ELECT_LEADERS, request, version=2)
    assert refused.error_code == ErrorCode.INVALID_REQUEST


async def test_partitions_move_between_brokers(cluster: Cluster) -> None:
    await cluster.create("t", 1, 2)
    assert await cluster.moves() == {}
    assert await cluster.reassign("t", None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await cluster.reassign("t", (1, 1)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await cluster.reassign("none", (1,)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stays = {"version": 1, "allow_replication_factor_change": False}
    assert await cluster.reassign("t", (1, 2, 3), **stays) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert await cluster.reassign("t", (3, 2), **stays) is ErrorCode.NONE
    expected = {"t": ((3, 2, 1), (3,), (1,))}
    assert await cluster.moves() == expected
    assert await cluster.moves(({"name": "t", "partition_indexes": (0, 5)},)) == expected
    assert await cluster.moves(({"name": "t", "partition_indexes": (5,)},)) == {}
    answer = await cluster.want_isr(1, 1, 2, 3)
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    assert (cluster.partition().replicas, cluster.partition().leader) == ((3, 2), 3)
    assert await cluster.moves() == {}
    await cluster.reassign("t", (1, 2))
    assert await cluster.reassign("t", None) is ErrorCode.NONE
    assert set(cluster.partition().replicas) == {2, 3}


async def test_what_nobody_set_is_reported_as_it_holds(cluster: Cluster) -> None:
    key = "min.insync.replicas"
    for name, replicas, least in (("one", (1,), "1"), ("two", (1, 2), "2"), ("three", (1, 2, 3), "2")):
        await cluster.create(name, *replicas)
        assert await cluster.configs(TOPIC, name, key) == {key: (least, ConfigSource.DEFAULT)}
    await cluster.create("set", 1, 2, min_insync_replicas="1")
    assert await cluster.configs(TOPIC, "set", key) == {key: ("1", ConfigSource.DYNAMIC_TOPIC)}
    factor = "default.replication.factor"
    assert await cluster.configs(BROKER, "0", factor) == {factor: ("1", ConfigSource.DEFAULT)}


async def test_a_setting_of_all_brokers_changes_who_is_eligible(cluster: Cluster) -> None:
    await cluster.create("t", 1, 2, 3)
    await cluster.want_isr(1, 1)
    assert cluster.partition().elr == (2, 3)
    change = {"name": "min.insync.replicas", "config_operation": 0, "value": "1"}
    resource = {"resource_type": BROKER, "resource_name": "", "configs": (change,)}
    request = {"resources": (resource,), "validate_only": False}
    answer = await cluster.client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    assert answer.responses[0].error_code == ErrorCode.NONE
    assert cluster.partition().elr == ()


async def test_an_empty_machine_is_struck_off(cluster: Cluster) -> None:
    await cluster.create("t", 1, 2)

    async def unregister(node_id: int) -> ErrorCode:
        answer = await cluster.client.ask(ApiKey.UNREGISTER_BROKER, {"broker_id": node_id}, version=0)
        return ErrorCode(answer.error_code)

    assert await unregister(3) is ErrorCode.INVALID_REQUEST, "it is up"
    for node_id in (2, 3):
        await cluster.beat(node_id, want_fence=True)
    assert await unregister(2) is ErrorCode.INVALID_REQUEST, "it holds t-0"
    assert await unregister(3) is ErrorCode.NONE
    assert await unregister(3) is ErrorCode.BROKER_ID_NOT_REGISTERED
