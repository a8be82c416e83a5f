"""A platform that grows from one node to four and gives one up, under its records: whole processes."""

import json
import os
import signal

from fluvial_command import Cli, free_ports

from fluvial.cluster.picture import picture_of
from fluvial.cluster.wire import ClusterLink


def cluster(cli: Cli) -> dict[str, list[int]]:
    found = json.loads(cli.ok("cluster", "status", "--format", "json"))
    bad = [*found["offline"], *found["under_replicated"]]
    up = [node["id"] for node in found["nodes"] if node["up"]]
    return {"voters": found["voters"], "up": up, "bad": bad}


def replicas(cli: Cli, topic: str) -> set[int]:
    with ClusterLink(cli.status()["bootstrap_servers"]) as link:
        partitions = picture_of(link).partitions.values()
    return {node for each in partitions if each.place.topic == topic for node in each.replicas}


def test_a_platform_grows_and_gives_a_dead_node_up(cli: Cli) -> None:
    cli.port = free_ports(5)
    cli.up()
    cli.ok("topic", "create", "old", "--partitions", "3")
    cli.ok("produce", "old", stdin="kept\n")
    cli.ok("up", "--detach", "--brokers", "4")
    # Three vote; what was there stays where it was until somebody moves it, and new topics use the new nodes.
    assert cluster(cli) == {"voters": [0, 1, 2], "up": [0, 1, 2, 3], "bad": []}
    assert replicas(cli, "old") == {0}
    cli.ok("topic", "create", "new", "--partitions", "8", "--replication-factor", "3")
    assert replicas(cli, "new") == {0, 1, 2, 3}
    cli.ok("cluster", "reassign", "--replication-factor", "3", "--execute")
    assert len(replicas(cli, "old")) > 1
    pid = cli.pids()[2]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    cli.ok("cluster", "remove", "2", "--execute")
    assert cluster(cli) == {"voters": [0, 1, 3], "up": [0, 1, 3], "bad": []}
    assert [node["id"] for node in cli.status()["nodes"]] == [0, 1, 3]
    assert 2 not in replicas(cli, "old") | replicas(cli, "new")
    assert cli.ok("consume", "old", "--from-beginning", "--to-end") == "kept\n"
    told = cli.ok("events")
    assert "node 3 joined the cluster" in told
    assert "node 2 was struck off the cluster" in told
