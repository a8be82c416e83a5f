"""`fluvial cluster doctor --rehearse`: what topics of a running cluster would make of each fault, on a copy of it."""

import json

import pytest
from command_forks import forks
from fluvial_command import Cli

pytestmark = pytest.mark.rota  # five faults, each waited for

SECONDS_MAX = 540
# What became of topics and acks under each fault; the records that acks=1 loses are a matter of luck.
EXPECTED = {
    ("broker killed", "sound", "all"): "survived",
    ("broker killed", "single", "all"): "stopped",
    ("broker killed", "strict", "all"): "stopped",
    ("controller killed", "sound", "all"): "survived",
    ("controller killed", "strict", "all"): "stopped",
    ("broker cut off", "sound", "all"): "survived",
    ("broker cut off", "single", "all"): "stopped",
    ("disk full", "sound", "all"): "survived",
    ("disk full", "single", "all"): "stopped",
    ("disk full", "strict", "all"): "stopped",
    ("disk lost", "sound", "all"): "survived",
    ("disk lost", "single", "all"): "lost records",
    ("disk lost", "strict", "all"): "stopped",
}


def test_each_fault_is_played_and_told(cli: Cli) -> None:
    cli.up("--brokers", "3")
    create = ("topic", "create", "--partitions", "3")
    cli.ok(*create, "sound", "--profile", "durable")
    cli.ok(*create, "single", "--replication-factor", "1")
    cli.ok(*create, "strict", "--config", "min.insync.replicas=3")
    (cli.cwd / "hasty.properties").write_text("acks=1")
    pids = cli.pids()
    words = ("cluster", "doctor", "--rehearse", "--client", "hasty.properties", "--format", "json")
    done = forks().run(words, cwd=cli.cwd, environment=cli.environment, stdin=b"", timeout_seconds=SECONDS_MAX)
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)["rehearsal"]
    found = {(row["fault"], topic, row["acks"]): row for row in rows for topic in row["topics"]}
    assert len(found) == 5 * 3 * 2
    assert {key: found[key]["verdict"] for key in EXPECTED} == EXPECTED
    assert not any(row["verdict"] == "broke its claim" for row in rows)
    assert all(row["acknowledged"] > row["lost"] for row in rows)
    assert "disk lost: SIGKILL" in done.stderr
    assert cli.pids() == pids, "nothing is done to the cluster itself"
    assert "rehearsal-0" not in cli.ok("topic", "list")
