"""A few rounds of SIGKILL under load; `make kill` does fifty."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 2
TRIES = 3


@pytest.mark.e2e
def test_nothing_acknowledged_is_lost_or_doubled() -> None:
    # In a process of its own: librdkafka has been seen to crash the one that it is in, once in a hundred rounds on an
    # overloaded machine. That says nothing of the broker, so these rounds are made again with another seed.
    for seed in range(3, 3 + TRIES):
        command = [sys.executable, str(Path(__file__).with_name("kill_run.py"))]
        made = subprocess.run(
            [*command, "--rounds", str(ROUNDS), "--seed", str(seed)], capture_output=True, text=True, check=False
        )
        if made.returncode != -signal.SIGSEGV:
            break
    assert made.returncode == 0, made.stdout + made.stderr
    assert f"{ROUNDS} rounds, " in made.stdout
