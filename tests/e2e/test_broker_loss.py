"""The main job on three brokers: one is killed while events are published, and is back while tables are built."""

import json
from datetime import UTC, datetime

import pytest
from local_platform import LocalPlatform
from test_kill import assert_tables_are_exact

from tests.free_ports import free_ports_in_a_row

BROKERS = 3
# The flights of a month, and the death comes in the middle of them.
UNTIL = datetime(2013, 2, 1, tzinfo=UTC)


@pytest.mark.rota
def test_three_brokers_one_killed_and_returned_give_the_same_answers(platform: LocalPlatform) -> None:
    platform.brokers = BROKERS
    platform.port = free_ports_in_a_row(2 * BROKERS)
    platform.registry_port = platform.port + BROKERS
    told = platform.run(*platform.demo_words("--until", f"{UNTIL:%Y-%m-%d}", "--kill-a-node"))
    assert "killed (SIGKILL)" in told.stderr
    assert "is back" in told.stderr
    assert_tables_are_exact(platform, UNTIL)
    assert [node["pid"] is not None for node in platform.status()["nodes"]] == [True] * BROKERS
    described = json.loads(platform.run("topic", "describe", "flight_events", "--json").stdout)
    assert {len(partition["replicas"]) for partition in described["partitions"]} == {BROKERS}
