"""
Failure scenarios on clusters of real processes, each by its name, and a short storm of random faults.

In `make test` stand those that share one cluster of three; FLUVIAL_CHAOS=all has all of them, FLUVIAL_CHAOS_PEER=kafka
tells them to Apache Kafka. `make chaos` does the same with a line of progress for each.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chaos_run
import pytest
from chaos_scenarios import SCENARIOS, Clusters, Stage
from scenarios_registry import ROUNDS

PEER = os.environ.get("FLUVIAL_CHAOS_PEER", "ours")
ALL = os.environ.get("FLUVIAL_CHAOS") == "all"
SHORT = ("F-02", "F-04", "F-13", "F-17", "F-28", "F-36", "registry")  # F-30 is the same story as F-17
# Their faults are short: with the first a node is isolated, one is killed, then two of three at once.
SEEDS = (52, 16, 1)
STORM_SECONDS = 60 if ALL else 13

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    made = Clusters(tmp_path_factory.mktemp("chaos"), PEER)
    yield made
    made.close()


@pytest.mark.parametrize("name", SCENARIOS if ALL else SHORT)
def test_scenario(name: str, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    if SCENARIOS[name].only_ours and PEER != "ours":
        pytest.skip("its fault is injected at an interface of ours")
    if not ALL:
        monkeypatch.setenv(ROUNDS, "1")
    stage = Stage(name, clusters)
    try:
        SCENARIOS[name].tell(stage)
    except BaseException:
        print(clusters.spoilt())
        raise
    print("\n".join(stage.notes))


def test_storm(tmp_path: Path) -> None:
    # In a process of its own, for librdkafka has been seen to crash the one that it is in (`test_kill_rounds`).
    for seed in SEEDS:
        words = ["--peer", PEER, "--seconds", str(STORM_SECONDS), "--seed", str(seed), "--keep", str(tmp_path)]
        made = subprocess.run(
            [sys.executable, chaos_run.__file__, *words], capture_output=True, text=True, check=False, timeout=500
        )
        if made.returncode != -signal.SIGSEGV:
            break
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.endswith("0 broken promises\n"), made.stdout


def test_every_scenario_has_a_title_and_a_name_of_a_row() -> None:
    assert all(scenario.title for scenario in SCENARIOS.values())
    assert {name for name in SCENARIOS if not name.startswith("F-")} == {"fates", "registry"}
    assert set(SHORT) <= set(SCENARIOS)
