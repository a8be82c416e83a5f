"""A coordinator that is cut off says so in time, rather than what was true before another took over."""

from pathlib import Path
from typing import Any

from node_client import NodeClient, client_of
from node_cluster import cluster_of, eventually
from several_nodes import coordinated_by, topic_of

from log_broker.errors import ErrorCode
from log_broker.server.coordinators.internal_topics import group_partition
from log_broker.server.node import Node
from log_broker.wire.apis import ApiKey

SETTINGS = {"broker.session.timeout.ms": "3000", "offsets.topic.num.partitions": "3"}


async def commit(client: NodeClient, group: str, offset: int) -> ErrorCode:
    values: dict[str, Any] = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    answer = await client.ask(
        ApiKey.OFFSET_COMMIT, {**values, "topics": [{"name": "t", "partitions": [place]}]}, version=8
    )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(client: NodeClient, group: str) -> tuple[ErrorCode, int]:
    wanted = {"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = await client.ask(ApiKey.OFFSET_FETCH, {"groups": [wanted], "require_stable": False}, version=8)
    found = answer.groups[0]
    return ErrorCode(found.error_code), found.topics[0].partitions[0].committed_offset if found.topics else -1


async def described(client: NodeClient, group: str) -> ErrorCode:
    answer = await client.ask(
        ApiKey.DESCRIBE_GROUPS, {"groups": [group], "include_authorized_operations": False}, version=5
    )
    return ErrorCode(answer.groups[0].error_code)


async def test_offsets_are_not_read_where_another_may_have_moved_them_on(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, SETTINGS) as cluster:
        nodes = [cluster.nodes[number] for number in range(3)]
        await topic_of(nodes, "t", [0])
        group = await coordinated_by(nodes, 2, group=True)
        old = nodes[2]
        async with client_of(old) as client:
            assert await commit(client, group, 7) is ErrorCode.NONE
            cluster.isolate(2)
            others: list[Node] = nodes[:2]
            await eventually(lambda: any(not each.groups.check(group) for each in others))
            new = next(each for each in others if not each.groups.check(group))
            async with client_of(new) as elsewhere:
                assert await commit(elsewhere, group, 8) is ErrorCode.NONE
                assert await committed(elsewhere, group) == (ErrorCode.NONE, 8)
            # It has heard of nothing, and still takes itself for the leader.
            leader = old.cluster.leader_of("__consumer_offsets", group_partition(old.cluster, group))
            assert leader is not None
            assert leader.node_id == 2
            assert await committed(client, group) == (ErrorCode.NOT_COORDINATOR, -1)
            assert await described(client, group) is ErrorCode.NOT_COORDINATOR
            assert await commit(client, group, 9) is ErrorCode.NOT_COORDINATOR
        cluster.heal()
        await eventually(lambda: old.lease.valid)


async def test_a_node_without_others_reads_what_it_has_whatever_became_of_its_session(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, {"offsets.topic.num.partitions": "1"}) as cluster:
        node = cluster.nodes[0]
        await topic_of([node], "t", [0])
        group = await coordinated_by([node], 0, group=True)
        async with client_of(node) as client:
            assert await commit(client, group, 7) is ErrorCode.NONE
            await node.lifecycle.stop()
            node.lease.ended()
            assert await committed(client, group) == (ErrorCode.NONE, 7)
