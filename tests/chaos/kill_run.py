"""
SIGKILL at random moments under load, 50 rounds or as many as wanted: `make kill`.

    python tests/chaos/kill_run.py --rounds 50 --seed 1
"""

import argparse
import sys
import tempfile
from pathlib import Path

from kill_rounds import run_rounds
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def main() -> int:
    """Return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory(prefix="kill-") as folder, Progress(*columns) as progress:
        task = progress.add_task("rounds", total=options.rounds)
        report = run_rounds(
            Path(folder),
            options.rounds,
            options.seed,
            at_each=lambda so_far: progress.update(task, completed=so_far.rounds),
        )
    for problem in report.problems:
        print(problem)
    print(f"{report}; {len(report.problems)} broken promises")
    return bool(report.problems)


if __name__ == "__main__":
    sys.exit(main())
