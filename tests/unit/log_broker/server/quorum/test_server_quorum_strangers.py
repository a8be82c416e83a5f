"""What anybody can send to the metadata quorum of three real nodes: no message ends it, and no epoch is for good."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from node_client import client_of
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.raft.log import OffsetAndEpoch
from log_broker.core.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    VoteRequest,
)
from log_broker.core.raft.voters import ReplicaKey
from log_broker.errors import ErrorCode
from log_broker.server.node import Node
from log_broker.wire.quorum import question

LAST = 2**31 - 1


def vote(epoch: int, sender: ReplicaKey, asked: ReplicaKey, *, pre_vote: bool = False) -> VoteRequest:
    end = OffsetAndEpoch(2**40, max(epoch - 1, 0))
    return VoteRequest(epoch=epoch, candidate=sender, voter=asked, log_end=end, pre_vote=pre_vote)


MESSAGES: dict[str, Callable[[int, ReplicaKey, ReplicaKey], RaftRequest]] = {
    "vote": vote,
    "pre-vote": lambda epoch, sender, asked: vote(epoch, sender, asked, pre_vote=True),
    "begin": lambda epoch, sender, asked: BeginQuorumEpochRequest(epoch=epoch, leader_id=sender.node_id, voter=asked),
    "end": lambda epoch, sender, asked: EndQuorumEpochRequest(
        epoch=epoch, leader_id=sender.node_id, preferred_successors=(asked,)
    ),
    "fetch": lambda epoch, sender, asked: FetchRequest(
        epoch=epoch, replica=sender, log_end=OffsetAndEpoch(0, 0), high_watermark=0
    ),
    "fetch snapshot": lambda epoch, sender, asked: FetchSnapshotRequest(
        epoch=epoch, replica=sender, snapshot_id=OffsetAndEpoch(1, 1), position=0
    ),
}


async def send(node: Node, body: RaftRequest, cluster_id: str | None) -> Any:
    asked = question(body, cluster_id=cluster_id, endpoint=("127.0.0.1", 1))
    async with client_of(node) as client:
        return await client.ask(asked.api, asked.values, version=asked.version)


async def decides(cluster: NodeCluster) -> None:
    """Every node has a topic made, and all have replayed it."""
    for node in cluster.nodes.values():
        name = uuid4().hex
        await node.authority.create_topic(CreateTopic(name=name, topic_id=uuid4().hex, replication_factor=1))
        await eventually(lambda name=name: all(name in each.cluster.topics for each in cluster.nodes.values()))


def saved_epochs(cluster: NodeCluster) -> list[int]:
    files = (cluster.directory(node_id) / "__cluster_metadata-0" / "quorum-state" for node_id in cluster.nodes)
    return [json.loads(file.read_bytes())["leaderEpoch"] for file in files]


@pytest.mark.parametrize("kind", MESSAGES)
async def test_no_message_of_a_stranger_takes_a_working_quorum_to_another_epoch(tmp_path: Path, kind: str) -> None:
    async with cluster_of(tmp_path, 3, {"controller.quorum.fetch.timeout.ms": "30000"}) as cluster:
        await decides(cluster)
        before = {node.quorum.epoch for node in cluster.nodes.values()}
        (epoch,) = before
        keys = {node_id: node.quorum.key for node_id, node in cluster.nodes.items()}
        for node_id, node in cluster.nodes.items():
            for sender in (keys[(node_id + 1) % 3], ReplicaKey(99, "")):
                for named in (epoch + 1, epoch + 1000, epoch + 2**20, LAST - 1, LAST):
                    for cluster_id in (None, "another", node.cluster_id):
                        await send(node, MESSAGES[kind](named, sender, node.quorum.key), cluster_id)
        await decides(cluster)
        assert {node.quorum.epoch for node in cluster.nodes.values()} == before
        assert set(saved_epochs(cluster)) == before


async def test_the_message_that_ended_quorums_for_good_is_survived_also_by_a_restart(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        for node in cluster.nodes.values():
            goodbye = EndQuorumEpochRequest(epoch=LAST, leader_id=99, preferred_successors=())
            answer = await send(node, goodbye, None)
            assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        await decides(cluster)
        await cluster.kill(0, 1, 2)
        await cluster.start(0, 1, 2)
        await decides(cluster)
        assert max(saved_epochs(cluster)) < 100


@pytest.mark.parametrize(("kind", "refused"), [("vote", True), ("begin", True), ("end", True), ("fetch", False)])
async def test_who_names_no_cluster_may_only_fetch(tmp_path: Path, kind: str, refused: bool) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        node = cluster.controller
        for cluster_id in (None, "another"):
            body = MESSAGES[kind](node.quorum.epoch, ReplicaKey(99, ""), node.quorum.key)
            answer = await send(node, body, cluster_id)
            expected = ErrorCode.INCONSISTENT_CLUSTER_ID if refused or cluster_id else ErrorCode.NONE
            assert answer.error_code == expected


async def test_without_a_leader_an_epoch_that_nobody_can_have_come_to_is_not_taken(tmp_path: Path) -> None:
    """One voter of three is alone: it hears no leader, so that a real candidate could be told from no other."""
    async with cluster_of(tmp_path, 3) as cluster:
        alone = next(node for node in cluster.nodes.values() if not node.is_controller)
        others = [node_id for node_id in cluster.nodes if node_id != alone.config.node_id]
        cluster_id, key = alone.cluster_id, alone.quorum.key
        await cluster.kill(*others)
        await eventually(lambda: alone.quorum.leader_id is None)
        bound = alone.quorum._epoch_max()
        for message in MESSAGES.values():
            for epoch in (LAST, LAST - 1, bound + 3600, bound + 2**20):
                await send(alone, message(epoch, ReplicaKey(others[0], ""), key), cluster_id)
        assert alone.quorum.epoch < 100
        # This one is believed: nothing tells it from one that a voter sends, and it leaves room for two billion more.
        await send(alone, vote(bound, ReplicaKey(others[0], ""), key), cluster_id)
        assert alone.quorum.epoch == bound
        await cluster.start(*others)
        await cluster.has_controller()
        await decides(cluster)
        assert max(saved_epochs(cluster)) < bound + 3600


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("epoch", [-1, -(2**31), 0, LAST])
async def test_a_fetch_of_any_place_in_the_log_leaves_the_controller_in_office(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, offset: int, epoch: int
) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        node = cluster.controller
        before = node.quorum.epoch
        for replica in (ReplicaKey(99, ""), ReplicaKey(-1, "")):
            body = FetchRequest(
                epoch=before, replica=replica, log_end=OffsetAndEpoch(offset, epoch), high_watermark=offset
            )
            await send(node, body, node.cluster_id)
            snapshot = FetchSnapshotRequest(
                epoch=before, replica=replica, snapshot_id=OffsetAndEpoch(offset, epoch), position=offset
            )
            await send(node, snapshot, node.cluster_id)
        assert (node.quorum.leader_id, node.quorum.epoch) == (node.config.node_id, before)
        assert node.is_controller
        assert "failed" not in caplog.text
