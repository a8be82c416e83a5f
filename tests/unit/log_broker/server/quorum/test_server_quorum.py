"""The metadata quorum over real sockets: who decides, who takes over, and what nobody decides."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from node_client import client_of
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.raft.effects import AddVoter, RemoveVoter
from log_broker.core.raft.voters import Voter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import build_batch
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey
from log_broker.wire.quorum import LISTENER, as_uuid
from tests.free_ports import free_ports


async def make(node: Node, name: str, **fields: Any) -> None:
    """Make a topic; who is up does not matter for one of one replica."""
    wanted = fields or {"replication_factor": 1}
    await node.authority.create_topic(CreateTopic(name=name, topic_id=uuid4().hex, **wanted))


def same_images(cluster: NodeCluster) -> bool:
    return len({(node.cluster.version, tuple(sorted(node.cluster.topics))) for node in cluster.nodes.values()}) == 1


async def quorum_of(node: Node) -> Any:
    async with client_of(node) as client:
        asked = {"topics": ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)}
        answer = await client.ask(ApiKey.DESCRIBE_QUORUM, asked, version=2)
        return answer.topics[0].partitions[0]


async def test_any_node_has_the_controller_decide_and_all_replay_the_same(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        for node_id, node in cluster.nodes.items():
            async with client_of(node) as client:
                assert (await client.create(f"by-{node_id}")).error_code == ErrorCode.NONE
                assert (await client.create(f"by-{node_id}")).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        await eventually(lambda: same_images(cluster))
        assert {"by-0", "by-1", "by-2"} <= set(cluster.nodes[0].cluster.topics)


async def test_all_voters_and_how_far_they_are_are_described_by_any_node(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        follower = next(node for node in cluster.nodes.values() if not node.is_controller)
        async with asyncio.timeout(30):
            while True:  # until each voter has fetched from this leader and nothing is being committed
                found = await quorum_of(follower)
                assert found.error_code == ErrorCode.NONE
                if all(
                    voter.last_fetch_timestamp > 0 and voter.log_end_offset <= found.high_watermark
                    for voter in found.current_voters
                ):
                    break
        assert found.leader_id == cluster.controller.config.node_id
        assert {voter.replica_id for voter in found.current_voters} == {0, 1, 2}
        assert found.observers == ()


async def test_another_voter_takes_over_from_a_controller_that_dies_and_it_returns(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        first = cluster.controller.config.node_id
        epoch = cluster.controller.quorum.epoch
        await make(cluster.controller, "before")
        await cluster.kill(first)
        second = await cluster.has_controller()
        assert second.quorum.epoch > epoch
        for node in cluster.nodes.values():
            await make(node, f"after-{node.config.node_id}")
        await cluster.start(first)
        await eventually(lambda: same_images(cluster))
        assert "before" in cluster.nodes[first].cluster.topics
        assert not cluster.nodes[first].is_controller


async def test_a_controller_that_is_cut_off_decides_nothing_and_is_overruled(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        old = cluster.controller
        cluster.isolate(old.config.node_id)
        with pytest.raises(BrokerError) as refusal:
            await make(old, "lost")
        assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT, "it may come to be, as far as that node can tell"
        assert not old.is_controller
        new = await cluster.has_controller()
        await make(new, "kept")
        cluster.heal()
        await eventually(lambda: same_images(cluster))
        assert "lost" not in old.cluster.topics
        assert "kept" in old.cluster.topics


async def test_a_controller_that_has_not_noticed_yet_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, {"controller.quorum.fetch.timeout.ms": "600000"}) as cluster:
        old = cluster.controller
        cluster.isolate(old.config.node_id)
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        values = {"topics": (topic,), "timeout": 100, "validate_only": False}
        with pytest.raises(BrokerError, match="cannot commit") as refusal:
            await old.authority.ask_controller(ApiKey.CREATE_TOPICS, 7, values, timeout_seconds=0.1)
        assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert old.is_controller
        cluster.heal()


@pytest.mark.parametrize(("voters", "survives"), [(3, 1), (4, 1), (5, 2)])
async def test_so_many_voters_survive_the_loss_of_so_many(tmp_path: Path, voters: int, survives: int) -> None:
    async with cluster_of(tmp_path, voters) as cluster:
        last = cluster.nodes[voters - 1]
        await make(last, "there", assignments={0: (voters - 1,)})
        await cluster.kill(*range(survives))
        await cluster.has_controller()
        await make(last, "decided")
        await cluster.kill(survives)  # one more
        await eventually(lambda: not any(node.is_controller for node in cluster.nodes.values()))
        last.authority.answer_seconds_max = 0.5
        async with client_of(last) as client:
            assert (await client.create("undecided")).error_code == ErrorCode.REQUEST_TIMED_OUT
            # What is led goes on being led, and acknowledged.
            batch = bytes(build_batch([(1, None, b"v", ())]))
            assert (await client.produce("there", batch)).error_code == ErrorCode.NONE
        last.authority.answer_seconds_max = 15
        await cluster.start(0)
        await cluster.has_controller()
        await make(last, "again")
        assert "undecided" not in last.cluster.topics


async def test_a_node_far_behind_is_given_a_snapshot(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, {"fluvial.metadata.snapshot.entries": "10"}) as cluster:
        behind = next(node_id for node_id, node in cluster.nodes.items() if not node.is_controller)
        await cluster.kill(behind)
        controller = await cluster.has_controller()
        for number in range(30):
            await make(controller, f"t{number}")
        directory = cluster.directory(controller.config.node_id)
        await eventually(lambda: any(directory.glob("__cluster_metadata-0/*.checkpoint")))
        await cluster.start(behind)
        await eventually(lambda: same_images(cluster))
        node = cluster.nodes[behind]
        assert {f"t{number}" for number in range(30)} <= set(node.cluster.topics)
        assert any(cluster.directory(behind).glob("__cluster_metadata-0/*.checkpoint"))
        now, then = node.cluster.topics["t3"], controller.cluster.topics["t3"]
        assert (now.topic_id, now.partitions) == (then.topic_id, then.partitions)


async def test_a_torn_quorum_log_is_cut_and_filled_again(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        torn = next(node_id for node_id, node in cluster.nodes.items() if not node.is_controller)
        await make(cluster.controller, "t")
        await cluster.kill(torn)
        log = max(cluster.directory(torn).glob("__cluster_metadata-0/*.log"))
        log.write_bytes(log.read_bytes()[:-7])
        await cluster.start(torn)
        await eventually(lambda: same_images(cluster))
        assert "t" in cluster.nodes[torn].cluster.topics


async def test_all_nodes_killed_at_once_lose_nothing(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await make(cluster.controller, "t")
        cluster_id = cluster.controller.cluster_id
        await cluster.kill(0, 1, 2)
        await cluster.start(0, 1, 2)
        assert all("t" in node.cluster.topics for node in cluster.nodes.values())
        assert {node.cluster_id for node in cluster.nodes.values()} == {cluster_id}


async def test_brokers_need_not_vote_and_voters_need_be_no_brokers(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, {"process.roles": "controller"}, brokers=0) as cluster:
        addresses = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
        broker = cluster.node(
            7,
            process_roles="broker",
            controller_quorum_voters="",
            controller_quorum_bootstrap_servers=addresses,
        )
        await broker.start()
        cluster.nodes[7] = broker
        await make(broker, "t")
        assert [each.node_id for each in broker.cluster.alive_brokers()] == [7]
        assert broker.controller_id == 7, "clients are sent to a broker, which passes on what the controller decides"
        await cluster.kill(cluster.controller.config.node_id)
        await make(broker, "u")
        found = await quorum_of(broker)
        assert {voter.replica_id for voter in found.current_voters} == {0, 1, 2}
        assert [observer.replica_id for observer in found.observers] == [7]


async def test_an_observer_that_was_told_of_another_observer_alone_finds_the_leader(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, {"process.roles": "controller"}, brokers=0) as cluster:
        known = cluster.ports[0]
        for node_id in (7, 8):
            broker = cluster.node(
                node_id,
                process_roles="broker",
                controller_quorum_voters="",
                controller_quorum_bootstrap_servers=f"127.0.0.1:{known}",
            )
            cluster.nodes[node_id] = broker
            async with asyncio.timeout(30):
                await broker.start()
            known = broker.port
        assert {each.node_id for each in broker.cluster.alive_brokers()} == {7, 8}


async def test_voters_come_and_go_while_the_cluster_runs(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        addresses = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
        joining = cluster.node(3, controller_quorum_voters="", controller_quorum_bootstrap_servers=addresses)
        await joining.start()
        cluster.nodes[3] = joining
        voter = Voter(key=joining.quorum.key, host="127.0.0.1", port=joining.port)
        await cluster.controller.quorum.change_voters(lambda token: AddVoter(voter, token))
        await eventually(lambda: joining.quorum.is_voter)
        gone = cluster.controller.config.node_id
        key = cluster.controller.quorum.key
        await cluster.controller.quorum.change_voters(lambda token: RemoveVoter(key, token))
        controller = await cluster.has_controller()
        assert controller.config.node_id != gone
        await eventually(lambda: not cluster.nodes[gone].quorum.is_voter)
        found = await quorum_of(joining)
        assert {each.replica_id for each in found.current_voters} == {0, 1, 2, 3} - {gone}
        await make(cluster.nodes[gone], "by-one-that-votes-no-more")


async def test_a_voter_that_listens_elsewhere_is_found_there(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        moved = next(node_id for node_id, node in cluster.nodes.items() if not node.is_controller)
        await cluster.stop(moved)
        cluster.ports[moved] = free_ports(1)[0]
        await cluster.start(moved)
        others = [node for node_id, node in cluster.nodes.items() if node_id != moved]

        def known(node: Node) -> int:
            voter = node.quorum.voters.get(moved)
            return -1 if voter is None else voter.port

        await eventually(lambda: all(known(node) == cluster.ports[moved] for node in others))
        await cluster.kill(cluster.controller.config.node_id)
        await cluster.has_controller()


async def test_a_voter_is_not_taken_for_one_where_it_does_not_answer(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        leader = cluster.controller
        before = leader.quorum.voters
        voter, another = (node for node in cluster.nodes.values() if not node.is_controller)
        (nowhere,) = free_ports(1)
        for port in (nowhere, another.port, leader.port):
            values = {
                "cluster_id": leader.cluster_id,
                "current_leader_epoch": leader.quorum.epoch,
                "voter_id": voter.quorum.key.node_id,
                "voter_directory_id": as_uuid(voter.quorum.key.directory_id),
                "listeners": ({"name": LISTENER, "host": "127.0.0.1", "port": port},),
                "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
            }
            answer = await leader.authority.ask_controller(ApiKey.UPDATE_RAFT_VOTER, 0, values)
            assert answer.error_code in {ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.INVALID_VOTER_KEY}
        assert leader.quorum.voters == before
        await cluster.kill(0, 1, 2)
        await cluster.start(0, 1, 2)
        await cluster.has_controller()


async def test_a_replica_whose_disk_fails_stands_still_until_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        controller = cluster.controller
        store = controller.quorum._store
        assert store is not None

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(store, "append", fail)
        (refusal,) = await asyncio.gather(make(controller, "t"), return_exceptions=True)
        if refusal is None:  # the two others had it on their disks before this one's failure was noticed
            assert "t" in controller.cluster.topics
        else:
            assert isinstance(refusal, BrokerError)
            assert refusal.code is ErrorCode.REQUEST_TIMED_OUT
        await eventually(lambda: not controller.is_controller or controller.quorum._store is not store)
        await make(await cluster.has_controller(), "u")
        versions = [controller.cluster.version]
        await eventually(lambda: versions.append(controller.cluster.version) or "u" in controller.cluster.topics)
        assert versions == sorted(versions), "what was known is not forgotten on the way"
        await eventually(lambda: same_images(cluster))


async def test_a_decision_sees_those_before_it_that_are_not_committed(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        controller = cluster.controller
        results = await asyncio.gather(*(make(controller, "once") for _ in range(5)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, BrokerError)]
        assert len(refused) == 4
        assert {error.code for error in refused} == {ErrorCode.TOPIC_ALREADY_EXISTS}
