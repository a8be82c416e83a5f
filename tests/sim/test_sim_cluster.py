"""
Whole clusters in simulation: seeds hold, and the same seed is the same run.

CLUSTER_SEEDS=A:B runs other or more seeds; `make sim` is the long form.
"""

import os
import subprocess
import sys

import pytest

from log_broker.sim.cli import make_cluster
from log_broker.sim.runner import run_seed

FIRST, LAST = map(int, os.environ.get("CLUSTER_SEEDS", "0:4").split(":"))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_every_promise_is_kept(seed: int) -> None:
    report = run_seed(make_cluster, seed)
    assert report.failure is None, f"python -m log_broker sim --world cluster --seed {seed}: {report.failure.message}"


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Also under another hash seed: no decision of a broker hangs on the order of a set."""
    program = (
        "from log_broker.sim.cli import make_cluster; from log_broker.sim.runner import run_seed; "
        "report = run_seed(make_cluster, 3, trace_lines_max=10**6); "
        "print(report.events, report.acknowledged, report.virtual_us, report.story)"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(runs) == 1
