"""A program's answer in other processes, whose sets have other orders."""

import os
import subprocess
import sys


def answers_under_two_hash_seeds(program: str) -> set[str]:
    """What the program prints under each of two hash seeds; one answer where nothing hangs on the order of a set."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
