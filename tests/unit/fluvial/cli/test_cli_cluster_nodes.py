"""A platform that grows from one node to four and gives one up, under its records: whole processes."""

import json
import os
import signal

from fluvial_command import Cli

from fluvial.cluster.picture import picture_of
from fluvial.cluster.wire import ClusterLink
from fluvial.kafka import KafkaCluster


def cluster(cli: Cli) -> dict[str, list[int]]:
    found = json.loads(cli.ok("cluster", "status", "--format", "json"))
    bad = [*found["offline"], *found["under_replicated"]]
    up = [node["id"] for node in found["nodes"] if node["up"]]
    return {"voters": found["voters"], "up": up, "bad": bad}


def replicas(cli: Cli, topic: str) -> set[int]:
    with ClusterLink(KafkaCluster(cli.status()["bootstrap_servers"])) as link:
        partitions = picture_of(link).partitions.values()
    return {node for each in partitions if each.tp.topic == topic for node in each.replicas}


def judge_settings(cli: Cli) -> None:
    """Of a single copy, and of a minimum that is lowered, people are warned at that moment and when they ask."""
    made = cli.run("topic", "create", "careless", "--replication-factor", "1")
    assert (made.returncode, made.stderr.count("\n")) == (0, 2)
    assert "warning (loses data): topic careless has one copy" in made.stderr
    assert "warning" not in cli.run("topic", "create", "safe", "--profile", "durable").stderr
    asked = ("min.insync.replicas", "unclean.leader.election.enable", "fluvial.durability")
    held = {each["name"]: each["value"] for each in json.loads(config(cli, "safe", *asked))}
    assert held == dict(zip(asked, ("2", "false", "fsync-quorum"), strict=True))
    lowered = cli.run("cluster", "config", "set", "--topic", "safe", "min.insync.replicas=1")
    assert "acks=all is answered for a single copy" in lowered.stderr
    (cli.cwd / "shop.properties").write_text("acks=1\n")
    judged = cli.run("cluster", "doctor", "--client", "shop.properties", "--format", "json")
    assert judged.returncode == 1
    found = {(each["severity"], each["about"], each["rule"]) for each in json.loads(judged.stdout)}
    assert found >= {
        ("loses data", "topic old", "one copy"),
        ("loses data", "topic careless", "one copy"),
        ("loses data", "topic safe", "minimum of one"),
        ("loses data", "shop.properties", "acks"),
    }
    assert not any(about == "topic new" for _, about, _ in found)
    cli.ok("topic", "delete", "careless")


def config(cli: Cli, topic: str, *names: str) -> str:
    return cli.ok("cluster", "config", "get", "--topic", topic, *names, "--format", "json")


def test_a_platform_grows_and_gives_a_dead_node_up(cli: Cli) -> None:
    cli.up()
    cli.ok("topic", "create", "old", "--partitions", "3")
    cli.ok("topic", "produce", "old", stdin="kept\n")
    cli.ok("up", "--detach", "--brokers", "4")
    # Three vote; what was there stays where it was until somebody moves it, and new topics use the new nodes.
    assert cluster(cli) == {"voters": [0, 1, 2], "up": [0, 1, 2, 3], "bad": []}
    assert replicas(cli, "old") == {0}
    cli.ok("topic", "create", "new", "--partitions", "8", "--replication-factor", "3")
    assert replicas(cli, "new") == {0, 1, 2, 3}
    judge_settings(cli)
    cli.ok("cluster", "reassign", "--replication-factor", "3", "--execute")
    assert len(replicas(cli, "old")) > 1
    pid = cli.pids()[2]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    cli.ok("cluster", "remove", "2", "--execute")
    assert cluster(cli) == {"voters": [0, 1, 3], "up": [0, 1, 3], "bad": []}
    assert [node["id"] for node in cli.status()["nodes"]] == [0, 1, 3]
    assert 2 not in replicas(cli, "old") | replicas(cli, "new")
    assert cli.ok("topic", "consume", "old", "--from-beginning", "--to-end") == "kept\n"
    told = cli.ok("cluster", "events")
    assert "node 3 joined the cluster" in told
    assert "node 2 was struck off the cluster" in told
    assert "topic safe: min.insync.replicas is 1 now (was 2)" in told
