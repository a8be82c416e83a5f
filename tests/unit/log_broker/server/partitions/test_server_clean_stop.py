"""Whether a broker that comes back may lead at once where records may have been in its memory only: how did it end?"""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from node_cluster import NodeCluster, cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.image import NO_LEADER, PartitionImage
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE, decode_clean_shutdown

FIRST, SECOND = 3, 4  # who has replicas; the other three keep the quorum


def partition(cluster: NodeCluster) -> PartitionImage:
    return cluster.nodes[0].cluster.topics["t"].partitions[0]


@pytest.mark.parametrize("end", ["in order", "killed", "stale mark"])
async def test_only_who_stopped_in_order_is_still_eligible_beside_another(tmp_path: Path, end: str) -> None:
    async with cluster_of(tmp_path, 5, {"broker.session.timeout.ms": "3000"}) as cluster:
        command = CreateTopic(
            name="t",
            topic_id=uuid4().hex,
            assignments={0: (SECOND, FIRST)},
            overrides={"fluvial.durability": "memory", "min.insync.replicas": "2"},
        )
        await cluster.controller.ensure_topic(command)
        await eventually(lambda: "t" in cluster.nodes[0].cluster.topics)
        assert set(partition(cluster).isr) == {FIRST, SECOND}
        epoch = cluster.nodes[0].cluster.brokers[FIRST].epoch
        mark = cluster.directory(FIRST) / CLEAN_SHUTDOWN_FILE
        assert not mark.exists()

        await (cluster.kill if end == "killed" else cluster.stop)(FIRST)
        if end != "killed":
            assert decode_clean_shutdown(mark.read_bytes()) == epoch
        if end == "stale mark":
            mark.write_text(json.dumps({"version": 0, "brokerEpoch": epoch - 1}))
        await eventually(lambda: partition(cluster).elr == (FIRST,))
        await cluster.kill(SECOND)
        await eventually(lambda: partition(cluster).leader == NO_LEADER)
        assert set(partition(cluster).elr) == {FIRST, SECOND}

        await cluster.start(FIRST)
        assert not mark.exists()
        await eventually(lambda: cluster.nodes[0].cluster.is_alive(FIRST))
        assert cluster.nodes[0].cluster.brokers[FIRST].epoch > epoch
        if end == "in order":
            assert partition(cluster).leader == FIRST
        else:
            assert (partition(cluster).leader, partition(cluster).elr) == (NO_LEADER, (SECOND,))
            # The last that is eligible stays so, whatever it lost.
            await cluster.start(SECOND)
            await eventually(lambda: partition(cluster).leader == SECOND)
            await eventually(lambda: set(partition(cluster).isr) == {FIRST, SECOND})
        await cluster.kill(*cluster.nodes)  # at once; in order they would hand over to each other first
