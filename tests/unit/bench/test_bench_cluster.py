"""The drivers of `make bench-cluster`, with three nodes of ours and loads of a moment."""

import time

import pytest

from tests.bench.broker.arena import Scale
from tests.bench.broker.measuring import topic
from tests.bench.cluster import failover
from tests.bench.cluster.arena import OURS, SAFE, ClusterArena
from tests.bench.cluster.servers import NODES, Cluster, OurCluster


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    cluster = OurCluster(tmp_path_factory.mktemp("bench"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def test_each_driver_writes_to_every_leader_and_all_that_was_acknowledged_is_there(ours: Cluster) -> None:
    arena = ClusterArena(None, Scale(1, 1.0))
    bulk = arena.produce(ours, OURS, "bulk", {"mode": "produce", "messages": 300, "value_bytes": 100}, partitions=6)
    assert bulk.acknowledged == bulk.messages + 6 == 300 + 6
    load = {"connections": 6, "in_flight": 2, "acks": -1, "value_bytes": 100, "seconds": 0.3}
    single = arena.produce(ours, OURS, "raw_requests", load, partitions=6)
    assert single.acknowledged == single.messages + 6
    assert 0 < single.p50_ms <= single.p99_ms
    assert ours.memory().rss > 0


def test_a_leader_that_is_killed_is_timed_to_the_next_ack_and_comes_back(ours: Cluster) -> None:
    with topic(ours, "bench-killed", NODES, SAFE) as name:
        ours.await_in_sync(name)
        controller = ours.controller()
        leaders = ours.leaders(name)
        victim = next(member for member in leaders if member is not controller)
        began = time.monotonic()
        seconds = failover.first_ack_after(ours, name, leaders.index(victim), victim.kill)
        assert 0 < seconds <= time.monotonic() - began
        failover.bring_back(ours, victim, name)
        assert victim.is_running
